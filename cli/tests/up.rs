//! `percolator up` as a process: what it has of who starts it, and how it ends.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{PERCOLATOR, output_of, signal, wait_for};

/// The command, started by a shell that does this before.
fn after(shell: &str, arguments: &[&str]) -> Command {
    let script = format!("{shell}; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", PERCOLATOR]);
    command.args(arguments);
    command
}

/// What the kernel says of a process behind this.
fn of_process(pid: u32, file: &str, behind: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix(behind));
    found.expect(behind).to_owned()
}

#[test]
fn servers_that_are_threads_have_the_highest_limit_and_a_hangup_stays_ignored() {
    let mut started = after(
        "trap '' HUP; ulimit -S -n 1024",
        &["up", "--ephemeral", "-o", "json"],
    );
    let mut up = started
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut ready = String::new();
    BufReader::new(up.stdout.take().expect("a pipe"))
        .read_line(&mut ready)
        .expect("readable output");
    assert!(ready.contains("tablet-0"), "{ready}");
    let limits = of_process(up.id(), "limits", "Max open files");
    let limits: Vec<&str> = limits.split_whitespace().collect();
    assert_eq!(limits[0], limits[1], "{limits:?}");
    let bits = |field: &str| {
        let bits = of_process(up.id(), "status", field);
        u64::from_str_radix(bits.trim(), 16).expect("bits")
    };
    let (ignored, caught) = (bits("SigIgn:"), bits("SigCgt:"));
    assert_eq!((ignored & 1, caught & 1), (1, 0), "SIGHUP");
    signal(up.id(), "TERM");
    assert!(up.wait().expect("it ends").success());
}

/// Programs that use select() can't have more.
#[test]
fn a_command_has_the_limit_of_open_files_that_up_was_started_with() {
    let command = ["up", "--ephemeral", "-q", "--", "sh", "-c", "ulimit -S -n"];
    let said = output_of(after("ulimit -S -n 1024", &command)).ok();
    assert_eq!(said.trim(), "1024");
}

/// Makes a program that says nothing, as a server does whose register can't be read. Its process is named in a file beside it. The
/// file is written by a process of its own: what another test starts meanwhile would hold it open for writing, and it could not be
/// run.
fn make_silent_program(program: &Path) {
    let script = "#!/bin/sh\necho $$ > \"$0.pid\"\nexec sleep 600";
    let made = Command::new("sh")
        .args([
            "-c",
            "printf '%s\\n' \"$2\" > \"$1\"; chmod +x \"$1\"",
            "sh",
        ])
        .arg(program)
        .arg(script)
        .status();
    assert!(made.expect("sh runs").success());
}

#[test]
fn a_cluster_that_has_not_started_yet_is_stopped() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let itself = folder.path().join("percolator");
    std::fs::hard_link(PERCOLATOR, &itself).expect("a link");
    for server in ["percolator-master", "percolator-tablet"] {
        std::os::unix::fs::symlink("percolator", folder.path().join(server)).expect("a link");
    }
    make_silent_program(&folder.path().join("percolator-tso"));
    let data = folder.path().join("data");
    let up = Command::new(&itself)
        .args(["up", "--processes", "--no-proxy", "--port", "0"])
        .arg("--data-dir")
        .arg(&data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let oracle: u32 = wait_for("an oracle that does not listen", || {
        let pid = std::fs::read_to_string(folder.path().join("percolator-tso.pid"));
        pid.ok()?.trim().parse().ok()
    });
    let master = std::fs::read_to_string(data.join("servers.json")).expect("what runs");
    assert!(master.contains("master-0"), "{master}");
    signal(up.id(), "TERM");
    let said = up.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{said:?}");
    assert!(
        !data.join("servers.json").exists(),
        "the master was stopped"
    );
    wait_for("the end of the oracle", || {
        let line = std::fs::read(format!("/proc/{oracle}/cmdline"));
        line.map_or(true, |line| line.is_empty()).then_some(())
    });
}
