//! `percolator shell`: a session of transactions, typed or from a script.
//!
//! Lines are read on a thread, so that what the client does in the background goes on meanwhile.

mod command;
mod complete;
mod conflict;
mod input;
mod session;
mod words;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_client::Client;

use self::command::{Parsed, parse};
use self::input::{Input, Typed};
use self::session::{Next, Session};
use crate::errors::{Usage, exit_code, told};
use crate::output::Output;

/// How long a prompt may wait for the names of tables.
const NAMES_WITHIN: Duration = Duration::from_millis(300);

const DETAILS: &str = "\
Work with the data in a session: begin, get, get-for-update, put, delete, scan, commit, rollback, tables, \
status, help, exit.

Outside of a transaction every command is a transaction of its own. On a terminal, lines can be edited, \
words completed with the tab key, and earlier lines found again ($XDG_STATE_HOME/percolator/history, \
~/.local/state/percolator/history if it isn't set). Elsewhere commands are read from standard input, one a \
line, up to the first error, which ends the session with the exit code that the command line has for it; a \
transaction that is then open is rolled back.";

const EXAMPLES: &str = "\
Examples:
  percolator shell
  percolator shell --at 463372648734720    only read, as of a timestamp
  percolator shell -o json < script
  printf 'begin\\nput accounts bob balance 10\\ncommit\\n' | percolator shell";

/// Work with the data in a session: interactive, or a script.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{DETAILS}\n\n{EXAMPLES}"))]
pub(crate) struct Args {
    /// Only read, and as of this timestamp, not of now.
    #[arg(long, value_name = "TIMESTAMP")]
    at: Option<u64>,
}

pub(crate) async fn run(client: &Client, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    let session = Session::new(client, args.at, output).await?;
    if io::stdin().is_terminal() {
        typed(session, output).await
    } else {
        script(session).await
    }
}

/// A person types.
async fn typed(mut session: Session<'_>, output: Output) -> anyhow::Result<ExitCode> {
    let tables = Arc::new(Mutex::new(Vec::new()));
    let mut input = Input::terminal(tables.clone(), output)?;
    output.note("help lists the commands; exit, or Ctrl-D, leaves");
    loop {
        if let Ok(Some(names)) = tokio::time::timeout(NAMES_WITHIN, session.table_names()).await {
            *tables.lock() = names;
        }
        let line = match input.next(session.prompt()).await? {
            Typed::Line(line) => line,
            Typed::Interrupted => continue,
            Typed::End => break,
        };
        let done = tokio::select! {
            done = line_done(&mut session, &line) => done,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!(
                "given up waiting; a commit that is under way is rolled back, unless it has gone through"
            )),
        };
        match done {
            Ok(Next::Go) => {}
            Ok(Next::Exit) => break,
            Err(error) => complain(&format!("error: {}", told(&error))),
        }
    }
    session.end();
    Ok(ExitCode::SUCCESS)
}

/// A script is read.
async fn script(mut session: Session<'_>) -> anyhow::Result<ExitCode> {
    let mut input = Input::script()?;
    let mut number = 0;
    loop {
        let line = match input.next(String::new()).await? {
            Typed::Line(line) => line,
            Typed::Interrupted | Typed::End => break,
        };
        number += 1;
        match line_done(&mut session, &line).await {
            Ok(Next::Go) => {}
            Ok(Next::Exit) => break,
            // The reader of our results has gone.
            Err(error) if error.is::<io::Error>() => return Err(error),
            Err(error) => {
                complain(&format!("error: line {number}: {}", told(&error)));
                session.end();
                return Ok(exit_code(&error));
            }
        }
    }
    // A script that forgets its commit hasn't done what it was to do.
    Ok(if session.end() {
        complain(&format!(
            "error: line {number}: the script ends without a commit"
        ));
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

async fn line_done(session: &mut Session<'_>, line: &str) -> anyhow::Result<Next> {
    match parse(line).map_err(Usage)? {
        Parsed::Nothing => Ok(Next::Go),
        Parsed::Command(command) => session.run(command).await,
        Parsed::Help(help) => {
            writeln!(io::stdout().lock(), "{help}")?;
            Ok(Next::Go)
        }
    }
}

fn complain(message: &str) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}
