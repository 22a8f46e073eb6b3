//! One shell for a whole page, as a reader has it: its folder and variables stay from command to command.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{comparison::Comparison, page::Step};

/// A command that takes longer hangs.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a command in the background may take to print what is expected.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two reads of the output of a command in the background.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Printed behind each command's output, with its status.
const END: &str = "--end-of-command--";

/// Commands in the background end with the shell, however that ends.
const START: &str =
    "exec 2>&1\nstatus=0 background=\ntrap 'kill $background; wait $background' EXIT\n";

/// Where commands run, and with what.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    /// The folder in which the shell starts.
    pub folder: &'a Path,
    /// The folder of our programs, which is first on the path.
    pub programs: &'a Path,
    /// Takes the output of commands in the background.
    pub logs: &'a Path,
    /// The cluster that commands reach without `-c`.
    pub cluster: Option<&'a str>,
}

/// A shell that runs commands one by one.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    logs: PathBuf,
    background: usize,
}

/// What a command printed, and its exit code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandOutput {
    /// Standard output and standard error, in the order in which they were written.
    pub lines: Vec<String>,
    /// The exit code.
    pub status: i32,
}

impl Shell {
    /// Starts a shell.
    ///
    /// # Errors
    /// If there is no bash, or it doesn't run in this folder.
    pub fn start(environment: &Environment<'_>) -> anyhow::Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = std::iter::once(environment.programs.to_owned());
        let folders = programs.chain(std::env::split_paths(&path));
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .current_dir(environment.folder)
            .env("PATH", std::env::join_paths(folders)?)
            .env_remove("PERCOLATOR_CLUSTER")
            .envs(environment.cluster.map(|it| ("PERCOLATOR_CLUSTER", it)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run bash, which the commands are for")?;
        let input = child.stdin.take();
        let reader = BufReader::new(child.stdout.take().context("a shell without output")?);
        let (send, output) = mpsc::channel();
        thread::spawn(move || {
            for line in reader.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut shell = Self {
            child,
            input,
            output,
            logs: environment.logs.to_owned(),
            background: 0,
        };
        shell.write(START)?;
        Ok(shell)
    }

    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("the shell was stopped")?;
        input
            .write_all(text.as_bytes())
            .and_then(|()| input.flush())
            .context("the shell has ended")
    }

    /// Runs a command to its end. `$?` is the status of the one before.
    ///
    /// # Errors
    /// If the shell ends or the command hangs.
    pub fn run(&mut self, command: &str) -> anyhow::Result<CommandOutput> {
        self.write(&format!(
            "(exit $status)\neval {} </dev/null\nstatus=$?\nprintf '\\n%s %s\\n' {END} $status\n",
            quote(command)
        ))?;
        let started = Instant::now();
        let mut lines = Vec::new();
        loop {
            let left = COMMAND_TIMEOUT.saturating_sub(started.elapsed());
            let line = match self.output.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("no end after {} s", COMMAND_TIMEOUT.as_secs())
                }
                Err(RecvTimeoutError::Disconnected) => bail!("it has ended the shell"),
            };
            if let Some(status) = line.strip_prefix(END) {
                // The line break before the mark.
                if lines.last().is_some_and(String::is_empty) {
                    lines.pop();
                }
                let status = status
                    .trim()
                    .parse()
                    .context("a status that is no number")?;
                return Ok(CommandOutput { lines, status });
            }
            lines.push(line);
        }
    }

    /// Starts a command in the background, one program with its arguments, and waits until it has
    /// written what is expected. What it writes later may be anything.
    pub(crate) fn run_in_background(&mut self, step: &Step) -> anyhow::Result<CommandOutput> {
        self.background += 1;
        let log = self.logs.join(format!("{}.log", self.background));
        // Not in braces: `$!` would be a shell around the program, and the program would outlive it.
        let command = format!(
            "{} >{} 2>&1 &\nbackground=\"$background $!\"",
            step.command,
            quote(&log.to_string_lossy())
        );
        self.run(&command)?;
        let mut expected = step.expected.clone();
        expected.push("...".to_owned());
        let started = Instant::now();
        loop {
            // Before its output is read, so that the last lines are not missed.
            let runs = self.run("kill -0 $! 2>/dev/null")?.status == 0;
            let text = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            if Comparison::new(&expected, &lines).is_match() {
                return Ok(CommandOutput { lines, status: 0 });
            }
            if !runs || started.elapsed() > READY_TIMEOUT {
                return Ok(CommandOutput { lines, status: 1 });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Stops the commands in the background, and waits for their end.
    ///
    /// # Errors
    /// If they don't end.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.run("kill $background 2>/dev/null; wait $background")
            .context("what runs in the background doesn't stop")?;
        self.run("background=")?;
        self.input = None;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Without input the shell ends, and stops what it has started, unless a command hangs in it.
        self.input = None;
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if started.elapsed() > Duration::from_secs(5) {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Quotes a script as one word.
fn quote(script: &str) -> String {
    format!("'{}'", script.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell() -> (tempfile::TempDir, Shell) {
        let folder = tempfile::tempdir().expect("a folder");
        let environment = Environment {
            folder: folder.path(),
            programs: folder.path(),
            logs: folder.path(),
            cluster: None,
        };
        let shell = Shell::start(&environment).expect("a shell");
        (folder, shell)
    }

    #[test]
    fn commands_share_a_folder_variables_and_the_last_status() {
        let (_folder, mut shell) = shell();
        shell.run("mkdir a; cd a; X='it is'").expect("a run");
        let ran = shell.run("basename $PWD; echo \"$X\"").expect("a run");
        assert_eq!(ran.lines, ["a", "it is"]);
        assert_eq!(shell.run("(exit 3)").expect("a run").status, 3);
        assert_eq!(shell.run("echo $?").expect("a run").lines, ["3"]);
        shell.stop().expect("an end");
    }

    #[test]
    fn both_outputs_come_and_no_line_break_is_needed() {
        let (_folder, mut shell) = shell();
        let ran = shell.run("echo a >&2; printf b").expect("a run");
        assert_eq!(ran.lines, ["a", "b"]);
        let ran = shell.run("cat").expect("no input to wait for");
        assert_eq!(ran.lines, Vec::<String>::new());
    }

    #[test]
    fn a_syntax_error_does_not_end_the_shell() {
        let (_folder, mut shell) = shell();
        assert_ne!(shell.run("if ( ;").expect("a run").status, 0);
        assert_eq!(shell.run("echo a").expect("a run").lines, ["a"]);
    }

    #[test]
    fn the_background_is_waited_for_and_stopped() {
        let (folder, mut shell) = shell();
        let step = Step {
            command: "bash -c 'trap \"echo bye > end; exit\" TERM; sleep 0.2; echo ready; \
                      echo more; while true; do sleep 0.05; done'"
                .into(),
            background: true,
            expected: vec!["ready".into()],
            ..Step::default()
        };
        let ran = shell.run_in_background(&step).expect("a start");
        assert_eq!(ran.lines.first().map(String::as_str), Some("ready"));
        assert!(!folder.path().join("end").exists());
        shell.stop().expect("an end");
        assert!(folder.path().join("end").exists());
    }

    #[test]
    fn the_background_ends_with_a_shell_that_is_dropped() {
        let (folder, mut shell) = shell();
        let step = Step {
            command: "sleep 60".into(),
            background: true,
            ..Step::default()
        };
        shell.run_in_background(&step).expect("a start");
        let process = shell.run("echo $!").expect("a run").lines.concat();
        let runs = || {
            Command::new("bash")
                .args(["-c", &format!("kill -0 {process}")])
                .output()
        };
        assert!(runs().expect("an answer").status.success());
        drop(shell);
        let started = Instant::now();
        while runs().expect("an answer").status.success() {
            assert!(started.elapsed() < Duration::from_secs(60), "it still runs");
            thread::sleep(POLL_INTERVAL);
        }
        drop(folder);
    }

    #[test]
    fn a_background_that_ends_early_fails() {
        let (_folder, mut shell) = shell();
        let step = Step {
            command: "echo no".into(),
            background: true,
            expected: vec!["ready".into()],
            ..Step::default()
        };
        let ran = shell.run_in_background(&step).expect("a start");
        assert_eq!((ran.status, ran.lines), (1, vec!["no".to_owned()]));
    }
}
