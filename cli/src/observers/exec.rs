//! A program that is started for each change, and speaks of the transaction in lines of JSON.

use std::process::Stdio;
use std::time::Duration;

use percolator_client::{Change, HandlerError, OpenTxn};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use super::operations::{Operation, introduction};

/// What is kept of what a program says on standard error.
const ERROR_BYTES_MAX: u64 = 16 << 10;
/// The longest line that it may print.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// See [`super::RunArgs`].
#[derive(Clone, Debug)]
pub(super) struct Program {
    command: String,
    timeout: Duration,
}

impl Program {
    pub(super) fn new(command: String, timeout: Duration) -> Self {
        Self { command, timeout }
    }

    /// Runs it for one change.
    pub(super) async fn run(&self, change: Change, txn: OpenTxn) -> Result<(), HandlerError> {
        let mut command = Command::new("sh");
        match txn.traceparent() {
            Some(traceparent) => command.env("TRACEPARENT", traceparent),
            // The worker's own is of no run.
            None => command.env_remove("TRACEPARENT"),
        };
        let mut child = command
            .args(["-c", &self.command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("sh can't be run: {error}"))?;
        let mut group = Group::of(&child);
        let ran = tokio::time::timeout(self.timeout, converse(&mut child, &change, &txn)).await;
        if child.id().is_none() {
            // It has ended by itself, and its number may soon be another's.
            group.0 = None;
        }
        ran.map_err(|_| {
            let timeout = self.timeout;
            format!(
                "it took longer than {timeout:?}; does it read to the end of its input? That stays open: it is to read one line"
            )
        })?
    }
}

/// What a program has started is killed with it, or the parts of a pipeline would go on.
struct Group(Option<rustix::process::Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        Self(pid.and_then(rustix::process::Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // There is none any more where everything has ended.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

async fn converse(child: &mut Child, change: &Change, txn: &OpenTxn) -> Result<(), HandlerError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err("the program has no pipes".into());
    };
    let complaints = async {
        let (mut kept, mut stderr) = (Vec::new(), stderr);
        // What is more is read all the same: it would wait otherwise.
        let _ = (&mut stderr)
            .take(ERROR_BYTES_MAX)
            .read_to_end(&mut kept)
            .await;
        let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
        String::from_utf8_lossy(&kept).trim().to_owned()
    };
    let conversation = async {
        let introduced = say(&mut stdin, &introduction(change, txn)).await;
        let mut lines = BufReader::new(stdout);
        loop {
            let mut line = String::new();
            let read = (&mut lines)
                .take(LINE_BYTES_MAX)
                .read_line(&mut line)
                .await?;
            if read == 0 {
                break;
            }
            if !line.trim().is_empty() {
                let operation = Operation::read(&line)?;
                if let Some(answer) = operation.carry_out(change, txn).await? {
                    say(&mut stdin, &answer).await?;
                }
            }
        }
        drop(stdin);
        // A program that doesn't read has closed its input.
        drop(introduced);
        Ok::<(), HandlerError>(())
    };
    let (conversed, complaints) = tokio::join!(conversation, complaints);
    conversed?;
    let status = child.wait().await?;
    if status.success() {
        return Ok(());
    }
    let last = complaints.lines().last().unwrap_or("it says nothing");
    Err(format!("it ended with {status}: {last}").into())
}

async fn say(stdin: &mut ChildStdin, line: &Value) -> std::io::Result<()> {
    stdin.write_all(format!("{line}\n").as_bytes()).await?;
    stdin.flush().await
}
