//! Writes the manual pages and the shell completions of `planewised` and `pw-probe` from their command
//! lines, in the layout of `/usr/share`: `manual OUT DATE`. An example, so that the programs that ship do
//! not carry it; packaging/manual.py calls it.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

/// Commands of administrators are in section 8, those of every user in section 1.
const DAEMON: &str = "8";
const PROBE: &str = "1";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [out, date] = arguments.as_slice() else {
        return Err("usage: manual OUT DATE".into());
    };
    let out = Path::new(out);
    write(planewised::cli::Cli::command(), DAEMON, out, date)?;
    write(pw_probe::cli::Cli::command(), PROBE, out, date)?;
    Ok(())
}

/// Writes pages and completions of one program.
fn write(command: Command, section: &str, out: &Path, date: &str) -> io::Result<()> {
    completions(command.clone(), out)?;
    let folder = out.join(format!("man/man{section}"));
    fs::create_dir_all(&folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(&command, section, &folder, date)
}

/// Writes the page of a command and those of its subcommands: `planewised-vf-list.8`.
fn pages(command: &Command, section: &str, folder: &Path, date: &str) -> io::Result<()> {
    let version = command.get_version().unwrap_or_default();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let page = Man::new(command.clone())
        .title(&name)
        .section(section)
        .date(date)
        .source(format!("planewise {version}"))
        .manual("Planewise");
    page.render(&mut File::create(folder.join(format!("{name}.{section}")))?)?;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        pages(subcommand, section, folder, date)?;
    }
    Ok(())
}

/// Writes the completions where each shell looks for them.
fn completions(mut command: Command, out: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let files = [
        (Shell::Bash, format!("bash-completion/completions/{name}")),
        (Shell::Zsh, format!("zsh/site-functions/_{name}")),
        (Shell::Fish, format!("fish/vendor_completions.d/{name}.fish")),
    ];
    for (shell, file) in files {
        let file = out.join(file);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        generate(shell, &mut command, &name, &mut File::create(file)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command as Process;

    use super::*;

    /// Pages and completions of both programs in a folder of the test's. The crate tempfile would switch
    /// on features of others, so that `make release` compiled them twice: for this and for the programs.
    fn written(test: &str) -> PathBuf {
        let out = std::env::temp_dir().join(format!("planewise-{test}-{}", std::process::id()));
        for (command, section) in
            [(planewised::cli::Cli::command(), DAEMON), (pw_probe::cli::Cli::command(), PROBE)]
        {
            write(command, section, &out, "2026-01-02").expect("pages");
        }
        out
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
        }
        files
    }

    /// The output of a lint tool for a file; empty: it finds nothing wrong.
    fn complaints(tool: &[&str], file: &Path) -> String {
        let output = Process::new(tool[0]).args(&tool[1..]).arg(file).output();
        let output =
            output.unwrap_or_else(|_| panic!("{} is missing: run scripts/setup test", tool[0]));
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// The number of commands without hidden ones, which are for the program itself.
    fn commands(command: &Command) -> usize {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        1 + shown.map(commands).sum::<usize>()
    }

    #[test]
    fn every_command_has_a_page_in_which_mandoc_finds_nothing_wrong() {
        let out = written("pages");
        let pages = files(&out.join("man"));
        let expected =
            commands(&planewised::cli::Cli::command()) + commands(&pw_probe::cli::Cli::command());
        assert_eq!(pages.len(), expected, "{pages:?}");
        for page in pages {
            let output = complaints(&["mandoc", "-Tlint", "-Wwarning"], &page);
            // clap_mangen puts possible values between two breaks too many, which no reader sees.
            let wrong: Vec<&str> = output
                .lines()
                .filter(|line| !line.contains("skipping paragraph macro: br"))
                .collect();
            assert!(wrong.is_empty(), "{wrong:#?}");
            let shown = complaints(&["mandoc", "-Thtml"], &page);
            assert!(shown.contains("id=\"NAME\"") && shown.contains("id=\"OPTIONS\""), "{shown}");
        }
        fs::remove_dir_all(out).expect("the folder goes");
    }

    #[test]
    fn each_shell_reads_its_completions() {
        let out = written("completions");
        for (shell, folder) in [
            ("bash", "bash-completion/completions"),
            ("zsh", "zsh/site-functions"),
            ("fish", "fish/vendor_completions.d"),
        ] {
            let scripts = files(&out.join(folder));
            assert_eq!(scripts.len(), 2);
            for script in scripts {
                assert_eq!(complaints(&[shell, "-n"], &script), "", "{script:?}");
            }
        }
        fs::remove_dir_all(out).expect("the folder goes");
    }
}
