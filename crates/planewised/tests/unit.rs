//! The shipped unit's bounding set suffices to see which process holds a VF: run with exactly that set,
//! against a holder of another user. Needs root and setpriv; says so where it has neither.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pw_sriov::kernel::{Holder, holders_of};

const UNIT: &str = include_str!("../planewised.service");
/// Set for the copy of this program that looks with few capabilities: the file to look for.
const LOOK_FOR: &str = "PLANEWISED_TEST_LOOK_FOR";
/// Any user but root.
const ANOTHER: u32 = 65534;

/// The unit's capabilities as setpriv writes them: `net_admin`.
fn bounding_set() -> Vec<String> {
    let line = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.expect("the unit bounds its capabilities").split_whitespace();
    names.map(|name| name.trim_start_matches("CAP_").to_lowercase()).collect()
}

/// A process of another user that has the file open.
struct Other(Child);

impl Other {
    fn holding(file: &Path) -> Self {
        let opened = std::fs::File::open(file).expect("readable");
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::from(opened)).uid(ANOTHER).gid(ANOTHER);
        Self(command.spawn().expect("sleep runs"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What this test sees of the file's holder when it runs with these capabilities alone.
fn seen_with(capabilities: &[String], file: &Path) -> String {
    let set: Vec<String> = std::iter::once("-all".to_owned())
        .chain(capabilities.iter().map(|name| format!("+{name}")))
        .collect();
    let output = Command::new("setpriv")
        .args(["--bounding-set", &set.join(","), "--no-new-privs"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "a_holder_is_looked_for", "--nocapture"])
        .env(LOOK_FOR, file)
        .output()
        .expect("setpriv runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The part of the test that runs with few capabilities; by itself it looks for nothing.
#[test]
fn a_holder_is_looked_for() {
    let Some(file) = std::env::var_os(LOOK_FOR) else { return };
    let holders = holders_of(&[vec![file.to_string_lossy().into_owned()]], Path::new("/proc"));
    let holder = holders.into_iter().next().expect("one device");
    println!("seen: {holder:?}");
    assert_ne!(holder, Holder::Nobody, "a holder that cannot be seen is not nobody");
}

#[test]
fn under_the_unit_a_holder_of_another_user_is_seen_and_with_less_it_is_unknown() {
    if !nix::unistd::geteuid().is_root()
        || Command::new("setpriv").arg("--version").output().is_err()
    {
        eprintln!("skipped: needs root and setpriv");
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
    let other = Other::holding(&file);
    let wanted = format!("process {} (sleep)", other.0.id());
    let under_unit = seen_with(&bounding_set(), &file);
    assert!(under_unit.contains(&wanted), "{under_unit}");
    let mut less = bounding_set();
    less.retain(|name| name != "dac_read_search");
    let with_less = seen_with(&less, &file);
    assert!(with_less.contains("seen: Unknown("), "{with_less}");
}
