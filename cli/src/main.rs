//! The `percolator` command.

mod bank;
mod bench;
mod cells;
mod changes;
mod complete;
mod connect;
mod data;
mod errors;
mod gc;
mod history;
mod master;
mod metrics;
mod observe;
mod observers;
mod output;
mod retries;
mod server;
mod shell;
mod table;
mod tablet;
mod txn;
mod up;
mod verify;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use percolator_client::Options;

use connect::Connect;
use output::{Format, Output};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Distributed transactions: runs clusters, and works with the data in them.
///
/// Rows, columns and values are bytes. Those that aren't printable are shown, and typed, as \xNN (two
/// hexadecimal digits); \\ is a backslash, and \n, \r and \t are understood too.
///
/// Results go to standard output, messages to standard error.
#[derive(Debug, Parser)]
#[command(
    name = "percolator",
    version,
    max_term_width = 100,
    after_help = EXAMPLES,
    after_long_help = format!("{EXIT_CODES}\n\n{EXAMPLES}")
)]
struct Arguments {
    /// The cluster: address of its master; of several, with commas between.
    #[arg(
        long,
        short = 'c',
        global = true,
        help_heading = GLOBAL,
        env = CLUSTER_VARIABLE,
        value_name = "HOST:PORT",
        default_value = CLUSTER
    )]
    cluster: String,
    /// How results are printed.
    #[arg(
        long,
        short = 'o',
        global = true,
        help_heading = GLOBAL,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    output: Format,
    /// Leave out messages that nobody has to act on.
    #[arg(long, short = 'q', global = true, help_heading = GLOBAL)]
    quiet: bool,
    /// Tell on standard error of each transaction of the command that takes so long, for example 100ms: where the
    /// time went, and who was in the way. Default: of none.
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "PERCOLATOR_SLOW_TRANSACTIONS",
        value_name = "DURATION",
        value_parser = humantime::parse_duration
    )]
    slow_transactions: Option<Duration>,
    #[command(subcommand)]
    command: Command,
}

/// Empty, it counts as unset.
const CLUSTER_VARIABLE: &str = "PERCOLATOR_CLUSTER";
/// Where a cluster of `percolator up` is reached.
const CLUSTER: &str = "127.0.0.1:7400";
/// Of every command.
const GLOBAL: &str = "Global options";

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed; the message says why
  2  wrong usage: a word of the command line, a manifest, or what they ask for, is not possible
  3  the transaction conflicted with others, or was too old: begin it again
  4  the outcome of a commit is unknown: `percolator outcome` says whether it can be asked for later
  5  the cluster, or a part of it, wasn't reached in time
  6  there is no such table, or another one of its name
  7  the answer is no: no such value, a commit that is pending, a check that found something";

const EXAMPLES: &str = "\
Examples:
  percolator up -f examples/cluster.yaml               run a cluster on this machine
  percolator status                                    how it is, and what to do where it isn't well
  percolator table create accounts --split-at m        make a table of two tablets
  percolator put accounts bob balance 10               write a cell
  percolator get accounts bob balance                  read it
  percolator scan accounts --prefix b                  read rows
  percolator up --ephemeral -- percolator bank         try the bank on a cluster that goes away";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a cluster on this machine.
    Up(up::Args),
    Status(observe::status::Args),
    Top(observe::top::Args),
    #[command(subcommand)]
    Debug(observe::bundle::Command),
    /// Make, list and delete tables.
    #[command(subcommand)]
    Table(table::Command),
    /// List, split, merge and move the tablets of tables.
    #[command(subcommand)]
    Tablet(tablet::Command),
    #[command(subcommand)]
    Server(server::Command),
    /// Read a cell, or the cells of a row.
    Get(cells::GetArgs),
    /// Write cells of a row.
    Put(cells::PutArgs),
    /// Delete a cell, or every cell of a row.
    Delete(cells::DeleteArgs),
    /// Read a range of rows.
    Scan(cells::ScanArgs),
    Changes(changes::Args),
    /// What became of a transaction whose commit was not answered.
    Outcome(cells::OutcomeArgs),
    Shell(shell::Args),
    Import(data::import::Args),
    Export(data::export::Args),
    CheckIndex(data::check_index::Args),
    /// Transfer money between accounts, and check that none is lost.
    Bank(bank::Args),
    #[command(subcommand)]
    Observe(observers::Command),
    #[command(subcommand)]
    History(history::Command),
    #[command(subcommand)]
    Gc(gc::Command),
    #[command(subcommand)]
    Txn(txn::Command),
    #[command(subcommand)]
    Master(master::Command),
    /// Measure what the cluster can do.
    Bench(bench::Args),
    /// Print what makes a shell complete commands, and names of tables: bash, zsh, fish and others.
    #[command(after_help = "Example:\n  source <(percolator completions bash)")]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// How long it waits for servers, where that can be said and isn't its own affair.
    fn waiting(&self) -> Option<cells::Waiting> {
        match self {
            Self::Table(command) => Some(command.waiting()),
            Self::Tablet(command) => Some(command.waiting()),
            Self::Server(command) => Some(command.waiting()),
            Self::Observe(command) => Some(command.waiting()),
            Self::Get(args) => Some(args.waiting),
            Self::Put(args) => Some(args.waiting),
            Self::Delete(args) => Some(args.waiting),
            Self::Scan(args) => Some(args.waiting),
            Self::Changes(args) => Some(args.waiting),
            Self::Outcome(args) => Some(args.waiting),
            _ => None,
        }
    }

    /// How long it goes on while servers are away, the master among them, where it is made for that.
    fn request_timeout(&self) -> Option<Duration> {
        match self {
            Self::Import(args) => Some(args.request_timeout),
            Self::Export(args) => Some(args.request_timeout),
            Self::CheckIndex(args) => Some(args.request_timeout),
            _ => None,
        }
    }
}

fn main() -> ExitCode {
    // An image has each server as another name of this file: they share most of what is in it.
    let called = std::env::args_os().next().map(PathBuf::from);
    let called = called.as_deref().and_then(Path::file_name);
    match called.and_then(OsStr::to_str) {
        Some("percolator-master") => percolator_gc_master::program::main(),
        Some("percolator-tso") => percolator_tso::program::main(),
        Some("percolator-tablet") => percolator_tablet::program::main(),
        Some("percolator-proxy") => percolator_proxy::program::main(),
        _ => command(),
    }
}

/// The cluster's address, where a variable that is set to nothing is one that isn't set.
fn named<'a>(given: &'a str, variable: Option<&OsStr>) -> &'a str {
    match given {
        "" if variable.is_some_and(OsStr::is_empty) => CLUSTER,
        given => given,
    }
}

fn command() -> ExitCode {
    complete::answer(Arguments::command);
    let arguments = Arguments::parse();
    let output = Output {
        format: arguments.output,
        quiet: arguments.quiet,
    };
    let result = match arguments.command {
        Command::Completions { shell } => {
            let written =
                complete::script(shell).and_then(|script| io::stdout().lock().write_all(&script));
            written.map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        command => percolator_server::run_on_current_thread("percolator", async {
            let slow = arguments.slow_transactions;
            let variable = std::env::var_os(CLUSTER_VARIABLE);
            let cluster = named(&arguments.cluster, variable.as_deref());
            run(cluster, slow, command, output).await
        })
        .map_err(anyhow::Error::from)
        .and_then(|result| result),
    };
    result.unwrap_or_else(|error| {
        // The reader of our results has gone: there's nobody to tell.
        if error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        {
            return ExitCode::SUCCESS;
        }
        // Files are named where they can't be read or written; only the results have no name.
        let what = if error.chain().count() == 1 && error.is::<io::Error>() {
            "cannot write the results: "
        } else {
            ""
        };
        let _ = writeln!(io::stderr().lock(), "error: {what}{}", errors::told(&error));
        errors::exit_code(&error)
    })
}

async fn run(
    cluster: &str,
    slow_transactions: Option<Duration>,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let command = match command {
        Command::Up(args) => return up::run(args, output).await,
        Command::Status(args) => return observe::status::run(cluster, args, output).await,
        Command::Top(args) => return observe::top::run(cluster, args, output).await,
        Command::Debug(command) => return observe::bundle::run(cluster, command, output).await,
        Command::Gc(command) => return gc::run(cluster, command, output).await,
        Command::Txn(command) => return txn::run(cluster, command, output).await,
        Command::Master(command) => return master::run(cluster, command, output).await,
        command => command,
    };
    let connect = Connect::new(cluster, slow_transactions)?;
    let command = match command {
        Command::History(command) => return history::run(&connect, command, output).await,
        Command::Bank(args) => return bank::run(&connect, args, output).await,
        command => command,
    };
    let mut options = Options::default();
    if let Some(waiting) = command.waiting() {
        options.request_timeout = waiting.request_timeout;
    }
    let mut opened = None;
    if let Some(request_timeout) = command.request_timeout() {
        options.request_timeout = options.request_timeout.min(request_timeout);
    }
    command.check(output)?;
    if let Command::Import(args) = &command {
        options = args.options(options);
        opened = Some(args.open()?);
    }
    let client = match command.request_timeout() {
        Some(request_timeout) => {
            connect
                .retrying_client(options, request_timeout, output)
                .await?
        }
        None => connect.client(options).await?,
    };
    let result = match command {
        Command::Table(command) => table::run(&client, command, output).await,
        Command::Tablet(command) => tablet::run(&client, command, output).await,
        Command::Server(command) => server::run(&client, command, output).await,
        Command::Observe(command) => observers::run(&client, command, output).await,
        Command::Get(args) => cells::get(&client, args, output).await,
        Command::Put(args) => cells::put(&client, args, output).await,
        Command::Delete(args) => cells::delete(&client, args, output).await,
        Command::Scan(args) => cells::scan(&client, args, output).await,
        Command::Changes(args) => changes::run(&client, args, output).await,
        Command::Outcome(args) => cells::outcome(&client, args, output).await,
        Command::Shell(args) => shell::run(&client, args, output).await,
        Command::Import(args) => {
            percolator_server::small_pages();
            let opened = match opened {
                Some(opened) => opened,
                None => args.open()?,
            };
            data::import::run(&client, args, opened, output).await
        }
        Command::Export(args) => data::export::run(&client, args, output).await,
        Command::CheckIndex(args) => data::check_index::run(&client, args, output).await,
        Command::Bench(args) => bench::run(cluster, &client, args, output).await,
        Command::Up(_)
        | Command::Status(_)
        | Command::Top(_)
        | Command::Debug(_)
        | Command::History(_)
        | Command::Bank(_)
        | Command::Gc(_)
        | Command::Txn(_)
        | Command::Master(_)
        | Command::Completions { .. } => Ok(ExitCode::SUCCESS),
    };
    client.settle().await;
    result
}

impl Command {
    /// What can be found wrong before anybody else is asked anything.
    fn check(&self, output: Output) -> anyhow::Result<()> {
        match self {
            Self::Table(command) => command.confirm(),
            Self::Get(args) => Ok(args.check(output)?),
            Self::Put(args) => Ok(args.written().map(drop)?),
            Self::Export(args) => Ok(args.check()?),
            Self::CheckIndex(args) => Ok(args.check()?),
            _ => Ok(()),
        }
    }
}

/// How a command ends that was asked something, and has nothing to complain of.
pub(crate) fn answered(yes: bool) -> ExitCode {
    ExitCode::from(if yes { 0 } else { 7 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command, and every command below it, by their words.
    fn without_example(command: &clap::Command, words: &str, found: &mut Vec<String>) {
        let words = format!("{words} {}", command.get_name());
        let short = command.get_after_help().map(ToString::to_string);
        let long = command.get_after_long_help().map(ToString::to_string);
        for help in [&short, &long.or(short.clone())] {
            if !help.as_ref().is_some_and(|help| help.contains("Example")) {
                found.push(words.clone());
            }
        }
        for below in command.get_subcommands() {
            if below.get_name() != "help" {
                without_example(below, &words, found);
            }
        }
    }

    /// Arguments without a word of what they are.
    fn without_help(command: &clap::Command, words: &str, found: &mut Vec<String>) {
        let words = format!("{words} {}", command.get_name());
        let arguments = command.get_arguments();
        let undescribed = arguments.filter(|it| it.get_help().is_none() && !it.is_hide_set());
        found.extend(undescribed.map(|it| format!("{words} {}", it.get_id())));
        for below in command.get_subcommands() {
            if below.get_name() != "help" {
                without_help(below, &words, found);
            }
        }
    }

    #[test]
    fn every_argument_is_described() {
        let mut command = Arguments::command();
        command.build();
        let mut found = Vec::new();
        without_help(&command, "", &mut found);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn an_empty_variable_is_an_unset_one() {
        let empty = Some(OsStr::new(""));
        assert_eq!(named("", empty), CLUSTER);
        assert_eq!(named("a:1", empty), "a:1");
        assert_eq!(named("", None), "");
        assert_eq!(named("", Some(OsStr::new("a:1"))), "");
    }

    #[test]
    fn every_help_has_an_example() {
        let mut command = Arguments::command();
        command.build();
        let mut found = Vec::new();
        without_example(&command, "", &mut found);
        assert_eq!(found, Vec::<String>::new());
    }
}
