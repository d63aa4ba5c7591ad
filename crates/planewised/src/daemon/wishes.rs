//! The operator's wishes (pins, exclusions, a policy, draining), kept over restarts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pw_alloc::model::{GuestId, Stance};
use pw_alloc::settings::PolicyKind;
use pw_error::{Error, Result};
use serde::{Deserialize, Serialize};

use super::disk::{read_json, write_json};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Saved {
    stances: BTreeMap<GuestId, Stance>,
    policy: Option<PolicyKind>,
    draining: bool,
}

/// The operator's wishes and their file.
#[derive(Debug)]
pub struct Wishes {
    path: PathBuf,
    saved: Saved,
}

impl Wishes {
    /// Reads the wishes from this directory.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join("wishes.json");
        let saved = read_json(&path).map_err(|error| {
            Error::failed(
                format!("{} cannot be read", path.display()),
                "remove it: pins and exclusions made while the daemon ran are forgotten then",
            )
            .caused_by(error)
        })?;
        Ok(Self { path, saved: saved.unwrap_or_default() })
    }

    fn change(&mut self, change: impl FnOnce(&mut Saved)) -> Result<()> {
        let mut saved = self.saved.clone();
        change(&mut saved);
        write_json(&self.path, &saved).map_err(|error| {
            Error::failed(
                format!("cannot write {}", self.path.display()),
                "make space: a wish that would be forgotten is not granted",
            )
            .caused_by(error)
        })?;
        self.saved = saved;
        Ok(())
    }

    /// The operator's stance on this guest; none: no wish.
    pub fn stance(&self, guest: &GuestId) -> Option<Stance> {
        self.saved.stances.get(guest).copied()
    }

    /// Keeps the operator's stance on this guest.
    pub fn set_stance(&mut self, guest: &GuestId, stance: Stance) -> Result<()> {
        self.change(|saved| {
            saved.stances.insert(guest.clone(), stance);
        })
    }

    /// The operator's policy; none: the configuration's.
    pub const fn policy(&self) -> Option<PolicyKind> {
        self.saved.policy
    }

    /// Keeps the policy.
    pub fn set_policy(&mut self, policy: PolicyKind) -> Result<()> {
        self.change(|saved| saved.policy = Some(policy))
    }

    /// Are all VFs to be returned to the pool?
    pub const fn draining(&self) -> bool {
        self.saved.draining
    }

    /// Keeps whether all VFs are to be returned to the pool.
    pub fn set_draining(&mut self, draining: bool) -> Result<()> {
        self.change(|saved| saved.draining = draining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_wished_is_there_after_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut wishes = Wishes::open(directory.path()).expect("none yet");
        assert_eq!((wishes.stance(&"web".into()), wishes.draining()), (None, false));
        wishes.set_stance(&"web".into(), Stance::Pinned).expect("written");
        wishes.set_policy(PolicyKind::Fair).expect("written");
        wishes.set_draining(true).expect("written");
        let again = Wishes::open(directory.path()).expect("read");
        assert_eq!(again.saved, wishes.saved);
        assert_eq!(again.stance(&"web".into()), Some(Stance::Pinned));
    }

    #[test]
    fn a_spoilt_file_is_named_and_not_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("wishes.json"), "{").expect("written");
        let error = Wishes::open(directory.path()).expect_err("half a file");
        assert!(error.what.contains("wishes.json cannot be read") && !error.remedy.is_empty());
    }
}
