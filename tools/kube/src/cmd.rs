//! Commands that say what they run.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// How often a silent command is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The output of a command is read by then, once it has ended. Something that it started and left
/// behind can hold its output open for ever.
const REST_WITHIN: Duration = Duration::from_secs(2);

/// A command to run.
#[derive(Debug)]
pub struct Cmd {
    command: Command,
    /// Variables that differ from ours, for the line that is printed.
    variables: Vec<(String, String)>,
    /// A line to print in place of the command.
    shown: Option<String>,
}

impl Cmd {
    /// Of this program, without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            command: Command::new(program),
            variables: Vec::new(),
            shown: None,
        }
    }

    /// The cargo that runs us, without its variables about this package. Build scripts that read such variables would run
    /// again, and all that depends on them be built again, whenever cargo runs by us after it ran by hand.
    pub fn cargo() -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Self::new(cargo);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_package(name)) {
            command.command.env_remove(name);
        }
        command
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets a variable, which is printed with the command.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// As [`Cmd::env`], for what a reader of the printed line needn't know.
    pub fn quiet_env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it in this folder.
    pub fn dir(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Shows this line in place of the command.
    pub fn shown_as(mut self, line: &str) -> Self {
        self.shown = Some(line.to_owned());
        self
    }

    /// The line to type to get the same: the program by its name alone.
    pub fn line(&self) -> String {
        if let Some(line) = &self.shown {
            return line.clone();
        }
        let variables = self
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={}", quote(value)));
        let program = Path::new(self.command.get_program());
        let program = program.file_name().unwrap_or(program.as_os_str());
        let arguments = std::iter::once(program)
            .chain(self.command.get_args())
            .map(|argument| quote(&argument.to_string_lossy()));
        variables.chain(arguments).collect::<Vec<_>>().join(" ")
    }

    fn announce(&self) {
        println!("$ {}", self.line());
        let _ = io::stdout().flush();
    }

    fn spawn(&mut self) -> anyhow::Result<Child> {
        let line = self.line();
        self.command
            .spawn()
            .with_context(|| format!("cannot run `{line}`"))
    }

    /// Prints the command and runs it on our own terminal.
    pub fn status(mut self) -> anyhow::Result<ExitStatus> {
        self.announce();
        let line = self.line();
        self.spawn()?
            .wait()
            .with_context(|| format!("cannot wait for `{line}`"))
    }

    /// As [`Cmd::status`]; a status other than zero is an error.
    pub fn run(self) -> anyhow::Result<()> {
        let line = self.line();
        check(self.status()?, &line)
    }

    /// Prints the command, runs it, and gives what it wrote on standard output; standard error goes
    /// to ours.
    pub fn output(self) -> anyhow::Result<String> {
        self.announce();
        self.silent_output()
    }

    /// As [`Cmd::output`], without printing the command.
    pub fn silent_output(mut self) -> anyhow::Result<String> {
        let line = self.line();
        let child = self
            .command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run `{line}`"))?;
        let output = child
            .wait_with_output()
            .with_context(|| format!("cannot wait for `{line}`"))?;
        check(output.status, &line)?;
        String::from_utf8(output.stdout).with_context(|| format!("`{line}` wrote what isn't UTF-8"))
    }

    /// Prints the command, runs it, and gives how it ended and what it wrote on both outputs.
    pub fn ended(mut self) -> anyhow::Result<(ExitStatus, String)> {
        self.announce();
        let line = self.line();
        let output = self.command.stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run `{line}`"))?;
        let written = [output.stdout, output.stderr].concat();
        Ok((
            output.status,
            String::from_utf8_lossy(&written).into_owned(),
        ))
    }

    /// Whether the command can be run and ends well, without a word of it.
    pub fn works(mut self) -> bool {
        self.command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Prints the command, runs it, and calls `each` with every line that it writes on either output,
    /// as it comes. It is killed when it takes longer than `limit`.
    pub fn lines(mut self, limit: Duration, mut each: impl FnMut(&str)) -> anyhow::Result<()> {
        self.announce();
        let line = self.line();
        let (reader, writer) = io::pipe().context("cannot make a pipe")?;
        self.command
            .stdin(Stdio::null())
            .stdout(writer.try_clone().context("cannot share a pipe")?)
            .stderr(writer);
        let mut child = self.spawn()?;
        // The command's own ends of the pipe go, so that ours ends with the child.
        drop(self);
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
                if send
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    break;
                }
            }
        });
        let started = Instant::now();
        let mut ended: Option<(ExitStatus, Instant)> = None;
        loop {
            match receive.recv_timeout(POLL_INTERVAL) {
                Ok(line) => each(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some((_, at)) = ended {
                if at.elapsed() > REST_WITHIN {
                    each("(something that it started still holds its output)");
                    break;
                }
            } else if let Some(status) = child.try_wait()? {
                ended = Some((status, Instant::now()));
            } else if started.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                bail!("`{line}` was killed after {} s", limit.as_secs());
            }
        }
        let status = match ended {
            Some((status, _)) => status,
            None => child
                .wait()
                .with_context(|| format!("cannot wait for `{line}`"))?,
        };
        check(status, &line)
    }

    /// Starts it, with both its outputs in a file.
    pub fn spawn_into(mut self, file: File) -> anyhow::Result<Child> {
        self.command
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot share a file")?)
            .stderr(file);
        self.spawn()
    }

    /// Becomes the command: returns only where that fails.
    #[cfg(unix)]
    pub fn exec(mut self) -> anyhow::Error {
        use std::os::unix::process::CommandExt;
        self.announce();
        let line = self.line();
        anyhow::Error::new(self.command.exec()).context(format!("cannot run `{line}`"))
    }
}

/// Checks the status of a command that was printed as `line`.
///
/// # Errors
/// It is another one than zero.
pub fn check(status: ExitStatus, line: &str) -> anyhow::Result<()> {
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// The word as a shell takes it.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Whether cargo sets this variable for the package whose program it runs.
fn is_of_package(variable: &OsStr) -> bool {
    let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
    let variable = variable.to_string_lossy();
    of_package.iter().any(|prefix| variable.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_shells_need_it() {
        assert_eq!(quote("--bin"), "--bin");
        assert_eq!(quote("-D warnings"), "'-D warnings'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn the_printed_line_can_be_typed() {
        let cmd = Cmd::new("/somewhere/cargo")
            .args(["doc", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(cmd.line(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn cargo_gets_no_variables_of_the_package_that_it_runs() {
        let cmd = Cmd::cargo();
        let removed = cmd.command.get_envs().filter(|(_, value)| value.is_none());
        let removed: Vec<&OsStr> = removed.map(|(name, _)| name).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(removed.contains(&OsStr::new(name)), "{name}: {removed:?}");
        }
    }

    #[test]
    fn lines_of_both_outputs_come() {
        let mut lines = Vec::new();
        Cmd::new("sh")
            .args(["-c", "echo one; echo two >&2; printf three"])
            .lines(Duration::from_secs(60), |line| lines.push(line.to_owned()))
            .expect("a command that ends well");
        assert_eq!(lines, ["one", "two", "three"]);
    }

    #[test]
    fn a_command_that_hangs_is_killed() {
        let error = Cmd::new("sleep")
            .arg("60")
            .lines(Duration::from_millis(300), |_| {})
            .expect_err("no end");
        assert_eq!(error.to_string(), "`sleep 60` was killed after 0 s");
    }
}
