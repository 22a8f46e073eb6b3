//! What can be typed in a session.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::words;
use crate::cells::Escaped;

const WORDS: &str = "\
Rows, columns and values are words. A word with blanks is put in quotes: in '...' everything stands for \
itself; in \"...\", and without quotes, \\\\, \\n, \\r, \\t and \\xNN (two hexadecimal digits) are bytes. \
What follows a # is a comment.

Outside of a transaction every command is a transaction of its own.";

/// Commands of a session
#[derive(Debug, Parser)]
#[command(
    name = "",
    multicall = true,
    disable_help_flag = true,
    after_help = WORDS,
    override_usage = "COMMAND [WORD]...",
    help_template = "{usage-heading} {usage}\n\n{all-args}{after-help}"
)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

/// A command.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Begin a transaction: reads see one snapshot, writes wait for the commit
    #[command(after_help = "Examples:\n  begin\n  begin --at 463372648734720")]
    Begin {
        /// Read as of this timestamp, not of now
        #[arg(long, value_name = "TIMESTAMP")]
        at: Option<u64>,
    },
    /// Read a cell, or every cell of a row
    #[command(after_help = "Examples:\n  get accounts bob balance\n  get accounts bob")]
    Get {
        /// The table
        table: String,
        /// The row
        #[arg(allow_negative_numbers = true)]
        row: Escaped,
        /// The column; without it, every cell of the row
        #[arg(allow_negative_numbers = true)]
        column: Option<Escaped>,
    },
    /// Read a cell, and commit only if nobody has changed it since
    #[command(after_help = "Example:\n  get-for-update accounts bob balance")]
    GetForUpdate {
        /// The table
        table: String,
        /// The row
        #[arg(allow_negative_numbers = true)]
        row: Escaped,
        /// The column
        #[arg(allow_negative_numbers = true)]
        column: Escaped,
    },
    /// Write cells of a row
    #[command(
        after_help = "Examples:\n  put accounts bob balance 10\n  put accounts bob balance 10 note 'out of town'"
    )]
    Put {
        /// The table
        table: String,
        /// The row
        #[arg(allow_negative_numbers = true)]
        row: Escaped,
        /// Columns and their values, in turn; '' is a column too
        #[arg(
            required = true,
            num_args = 2..,
            allow_hyphen_values = true,
            value_names = ["COLUMN", "VALUE"]
        )]
        cells: Vec<Escaped>,
    },
    /// Delete a cell
    #[command(after_help = "Example:\n  delete accounts bob balance")]
    Delete {
        /// The table
        table: String,
        /// The row
        #[arg(allow_negative_numbers = true)]
        row: Escaped,
        /// The column
        #[arg(allow_negative_numbers = true)]
        column: Escaped,
    },
    /// Read a range of rows
    #[command(
        after_help = "Examples:\n  scan accounts --prefix b --limit 10\n  scan accounts --from b --to d --reverse"
    )]
    Scan(ScanArgs),
    /// Commit the transaction
    #[command(after_help = "Example:\n  commit")]
    Commit,
    /// End the transaction without writing anything
    #[command(after_help = "Example:\n  rollback")]
    Rollback,
    /// List the tables
    #[command(after_help = "Example:\n  tables")]
    Tables,
    /// Show the transaction: its start_ts, age and buffered writes
    #[command(after_help = "Example:\n  status")]
    Status,
    /// Leave; an open transaction is rolled back
    #[command(visible_alias = "quit", after_help = "Example:\n  exit")]
    Exit,
}

impl Command {
    /// Whether it is of no use to a session that only reads.
    pub(crate) fn is_for_writers(&self) -> bool {
        match self {
            Self::Begin { .. }
            | Self::GetForUpdate { .. }
            | Self::Put { .. }
            | Self::Delete { .. }
            | Self::Commit
            | Self::Rollback => true,
            Self::Get { .. } | Self::Scan(_) | Self::Tables | Self::Status | Self::Exit => false,
        }
    }
}

/// Which rows.
#[derive(Debug, clap::Args)]
pub(crate) struct ScanArgs {
    /// The table
    pub(crate) table: String,
    /// Only rows that start with this
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    pub(crate) prefix: Option<Escaped>,
    /// First row
    #[arg(
        long,
        value_name = "ROW",
        conflicts_with = "prefix",
        allow_hyphen_values = true
    )]
    pub(crate) from: Option<Escaped>,
    /// Row to stop before
    #[arg(
        long,
        value_name = "ROW",
        conflicts_with = "prefix",
        allow_hyphen_values = true
    )]
    pub(crate) to: Option<Escaped>,
    /// The most rows to print
    #[arg(long, value_name = "ROWS")]
    pub(crate) limit: Option<u64>,
    /// From the last row to the first
    #[arg(long)]
    pub(crate) reverse: bool,
}

/// What a line says.
#[derive(Debug)]
pub(crate) enum Parsed {
    Nothing,
    Command(Command),
    /// Help was asked for.
    Help(String),
}

/// Reads a line.
///
/// # Errors
/// What is wrong with it, and how it is used.
pub(crate) fn parse(line: &str) -> Result<Parsed, String> {
    let words = words::split(line)?;
    if words.is_empty() {
        return Ok(Parsed::Nothing);
    }
    match Line::try_parse_from(words) {
        Ok(line) => Ok(Parsed::Command(line.command)),
        Err(error) => {
            let text = error.to_string();
            if error.use_stderr() {
                let mut text = text.trim_end().to_owned();
                if error.kind() == ErrorKind::InvalidSubcommand {
                    text = text.replacen("unrecognized subcommand", "unknown command", 1);
                    text = text.replacen("similar subcommand", "similar command", 1);
                }
                Err(text.strip_prefix("error: ").unwrap_or(&text).to_owned())
            } else {
                Ok(Parsed::Help(text.trim_end().to_owned()))
            }
        }
    }
}

/// Whether a word of the command at this place, counted from the command itself, is a table.
pub(crate) fn takes_table(command: &str, place: usize) -> bool {
    place == 1
        && matches!(
            command,
            "get" | "get-for-update" | "put" | "delete" | "scan"
        )
}

/// The names of all commands.
pub(crate) fn names() -> Vec<String> {
    let mut command = Line::command();
    command.build();
    command
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect()
}

/// The options of a command.
pub(crate) fn options(command: &str) -> Vec<String> {
    let line = Line::command();
    let Some(command) = line.find_subcommand(command) else {
        return Vec::new();
    };
    command
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .map(|long| format!("--{long}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Command {
        match parse(line).unwrap() {
            Parsed::Command(command) => command,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_are_read() {
        let Command::Put { row, cells, .. } = command("put t -1 'c d' -x\\x00 '' 2") else {
            panic!();
        };
        let cells: Vec<&[u8]> = cells.iter().map(|cell| &cell.0[..]).collect();
        assert_eq!(&row.0[..], b"-1");
        assert_eq!(cells, [&b"c d"[..], b"-x\x00", b"", b"2"]);
        let Command::Scan(scan) = command("scan t --from a --to b --limit 3 --reverse") else {
            panic!();
        };
        assert!(scan.reverse && scan.limit == Some(3) && scan.prefix.is_none());
        assert!(matches!(command("quit"), Command::Exit));
        assert!(matches!(
            command("begin --at 7"),
            Command::Begin { at: Some(7) }
        ));
        assert!(matches!(parse("  # nothing").unwrap(), Parsed::Nothing));
    }

    #[test]
    fn errors_say_what_is_wrong_and_show_usage() {
        for (line, expected) in [
            ("put t bob", &["<COLUMN>", "Usage: put"][..]),
            (
                "gett t",
                &["unknown command 'gett'", "similar command exists: 'get'"],
            ),
            ("get t a\\q", &["a\\q", "<ROW>", "is no escape"]),
            (
                "scan t --prefix a --from b",
                &["cannot be used with", "Usage: scan"],
            ),
            ("scan t --limit many", &["many", "--limit"]),
            ("commit now", &["'now'", "Usage: commit"]),
            ("get 'a", &["column 5", "not closed"]),
        ] {
            let error = parse(line).unwrap_err();
            for part in expected {
                assert!(error.contains(part), "{line}: {error}");
            }
            assert!(!error.starts_with("error"), "{error}");
        }
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        for name in names() {
            let Ok(Parsed::Help(help)) = parse(&format!("help {name}")) else {
                panic!("{name}");
            };
            assert!(name == "help" || help.contains("Example"), "{help}");
        }
        let Parsed::Help(help) = parse("help").unwrap() else {
            panic!();
        };
        assert!(
            help.contains("get-for-update") && help.contains("\\xNN"),
            "{help}"
        );
    }

    #[test]
    fn completion_knows_options() {
        assert!(options("scan").contains(&"--prefix".to_owned()));
        assert!(options("begin").contains(&"--at".to_owned()));
        assert!(options("nonsense").is_empty());
        assert!(names().contains(&"get-for-update".to_owned()));
    }
}
