//! `percolator table`.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use bytes::Bytes;
use percolator_client::{Client, Error, Table, Tablet, escape};
use serde::Serialize;
use serde_json::json;

use crate::cells::{Escaped, Waiting};
use crate::errors::{InOtherWords, Usage};
use crate::output::{Format, Named, Output, columns, size, with_bytes};

/// What to do with tables.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator table create accounts --split-at m
  percolator table list
  percolator table observe documents text
  percolator table delete accounts --yes")]
pub(crate) enum Command {
    /// Make a table, or leave it as it is where it is there with the very same cuts.
    ///
    /// A table of that name that is cut otherwise is an error, with exit code 6.
    #[command(after_help = "\
Examples:
  percolator table create accounts
  percolator table create accounts orders items
  percolator table create - < names.txt                      one name a line, made as they are read
  percolator table create pages --split-at h --split-at p    three tablets: up to h, h to p, from p on")]
    Create {
        /// Its name: 1 to 64 of a-z, 0-9, '_', '.' and '-', starting with a letter or digit. Several are made one after
        /// the other, up to the first that fails; - reads names from the standard input.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Cut the table into tablets at this row; may be given often, in order.
        #[arg(long, value_name = "ROW")]
        split_at: Vec<Escaped>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// List the tables. `percolator tablet list` lists their tablets.
    ///
    /// The state of a table is `ready` where every row of it can be used. Otherwise it says what is missing: the
    /// servers that are away, whose tablets nobody can use until they are back; tablets that their server has
    /// lost with its folder; or rows that no server has reported yet to a master that was started without its
    /// state.
    #[command(after_help = "Examples:\n  percolator table list\n  percolator table list -o json")]
    List {
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Observe a column: from now on each change of one of its cells leaves a notification, for `percolator observe`.
    ///
    /// Cells that are there already leave none. Harmless when repeated.
    #[command(
        after_help = "Example:\n  percolator table observe documents text\n  percolator observe run documents text --exec ./count-words"
    )]
    Observe {
        /// The table.
        #[arg(add = crate::complete::tables())]
        name: String,
        /// The column, of at most 1019 bytes.
        column: Escaped,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Observe a column no more: its changes leave no notifications, and those that wait are removed.
    ///
    /// Runs that have begun don't commit any more. Dead letters stay. Harmless when repeated.
    #[command(after_help = "Example:\n  percolator table unobserve documents text")]
    Unobserve {
        /// The table.
        #[arg(add = crate::complete::tables())]
        name: String,
        /// The column.
        column: Escaped,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Delete a table with all its rows, at once and for every snapshot.
    ///
    /// Its name can be used again at once. Rows that were committed to other tables together with some of this one stay.
    /// The space comes when the retention is over, as for every version that is hidden (`percolator gc status`). A tablet
    /// server that is away is named, with exit code 5: the deletion goes on by itself when it is back.
    #[command(
        after_help = "Examples:\n  percolator table delete accounts\n  percolator table delete accounts --yes --accept-data-loss"
    )]
    Delete {
        /// Its name.
        #[arg(add = crate::complete::tables())]
        name: String,
        /// Delete it although a tablet server has lost tablets of it, for good. Locks in other tables about which these would
        /// have decided are rolled back: what was committed in both may be kept by half.
        #[arg(long)]
        accept_data_loss: bool,
        /// Don't ask. Without a terminal nobody can be asked, and it is needed.
        #[arg(long, short = 'y')]
        yes: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
}

impl Command {
    /// Asks whether that is meant which can't be undone, before anybody else is asked anything.
    pub(crate) fn confirm(&self) -> anyhow::Result<()> {
        let Self::Delete {
            name, yes: false, ..
        } = self
        else {
            return Ok(());
        };
        let what = format!("table {name} would be deleted with all its rows, for every snapshot");
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Err(Usage(format!("{what}: add --yes where that is meant")).into());
        }
        write!(io::stderr(), "{what}. Delete it? [y/N] ")?;
        let mut said = String::new();
        stdin.read_line(&mut said)?;
        match said.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => anyhow::bail!("table {name} is left as it is"),
        }
    }

    pub(crate) fn waiting(&self) -> Waiting {
        match self {
            Self::Create { waiting, .. }
            | Self::List { waiting, .. }
            | Self::Observe { waiting, .. }
            | Self::Unobserve { waiting, .. }
            | Self::Delete { waiting, .. } => *waiting,
        }
    }
}

#[derive(Serialize)]
struct TableJson<'a> {
    name: &'a str,
    id: u32,
    /// Every tablet is in place, no server of theirs is away, and none has lost any.
    ready: bool,
    deleting: bool,
    /// Servers of its tablets that are away.
    away: BTreeSet<&'a str>,
    tablets: Vec<TabletJson<'a>>,
}

#[derive(Serialize)]
pub(crate) struct TabletJson<'a> {
    id: u64,
    #[serde(flatten)]
    start_row: Named<'a>,
    #[serde(flatten)]
    end_row: Named<'a>,
    epoch: u64,
    server: &'a str,
    server_alive: bool,
    /// `None`: the server was silent since this master leads.
    server_silent_ms: Option<u64>,
    /// The server is there, and doesn't have it any more.
    lost: bool,
    /// The server that is getting it, and bytes that this one has.
    moving_to: Option<&'a str>,
    moved_bytes: Option<u64>,
    /// Bytes of keys and values of all versions, about.
    bytes: u64,
    /// Cells that are read or written a second.
    load: u64,
}

impl<'a> TableJson<'a> {
    fn new(table: &'a Table, lost: &LostTablets) -> Self {
        let tablets = table.tablets.iter();
        Self {
            name: &table.name,
            id: table.id,
            ready: table.ready && missing(table, lost).is_empty(),
            deleting: table.deleting,
            away: away(table),
            tablets: tablets.map(|it| TabletJson::new(it, lost)).collect(),
        }
    }
}

impl<'a> TabletJson<'a> {
    pub(crate) fn new(tablet: &'a Tablet, lost: &LostTablets) -> Self {
        Self {
            id: tablet.id,
            start_row: Named::new("start_row", &tablet.start_row),
            end_row: Named::new("end_row", &tablet.end_row),
            epoch: tablet.epoch,
            server: &tablet.server,
            server_alive: tablet.server_alive,
            server_silent_ms: tablet
                .server_silence
                .map(|silence| u64::try_from(silence.as_millis()).unwrap_or(u64::MAX)),
            lost: lost.contains(&tablet.id),
            moving_to: tablet.moving_to.as_ref().map(|(to, _)| to.as_str()),
            moved_bytes: tablet.moving_to.as_ref().map(|(_, bytes)| *bytes),
            bytes: tablet.bytes,
            load: tablet.load,
        }
    }
}

pub(crate) async fn run(
    client: &Client,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create {
            names, split_at, ..
        } => {
            let cuts: Vec<_> = split_at.into_iter().map(|row| row.0).collect();
            for name in names {
                if name == "-" {
                    create_read(client, &cuts, output).await?;
                } else {
                    create_and_say(client, &name, &cuts, output).await?;
                }
            }
        }
        Command::Delete {
            name,
            accept_data_loss,
            ..
        } => {
            if accept_data_loss {
                client.delete_lost_table(&name).await?
            } else {
                client.delete_table(&name).await?
            }
            match output.format {
                Format::Text => output.note(&format!("table {name} is deleted")),
                Format::Json => {
                    output.line(&json!({"name": name, "deleted": true}).to_string())?;
                }
            }
        }
        Command::Observe { name, column, .. } => {
            client.observe(&name, &column.0).await?;
            say_observed(output, &name, &column.0, true)?;
        }
        Command::Unobserve { name, column, .. } => {
            client.unobserve(&name, &column.0).await?;
            say_observed(output, &name, &column.0, false)?;
        }
        Command::List { .. } => list(client, output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the tables that the standard input names, each as soon as it is read.
async fn create_read(client: &Client, cuts: &[Bytes], output: Output) -> anyhow::Result<()> {
    // A thread of its own may wait for a line; it ends with the process.
    let (sender, mut lines) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lines() {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = lines.recv().await {
        let line = line?;
        if !line.trim().is_empty() {
            create_and_say(client, line.trim(), cuts, output).await?;
        }
    }
    Ok(())
}

async fn create_and_say(
    client: &Client,
    name: &str,
    cuts: &[Bytes],
    output: Output,
) -> anyhow::Result<()> {
    let made = create(client, name, cuts).await?;
    match output.format {
        Format::Text => output.note(&format!(
            "table {name} is ready, {} tablet(s)",
            made.tablets.len()
        )),
        Format::Json => {
            let lost = lost(client).await?;
            output.line(&serde_json::to_string(&TableJson::new(&made, &lost))?)?;
        }
    }
    Ok(())
}

fn say_observed(output: Output, table: &str, column: &[u8], observed: bool) -> anyhow::Result<()> {
    match output.format {
        Format::Text => {
            let not = if observed { "" } else { "not " };
            let column = escape(column);
            output.note(&format!(
                "column {column:?} of table {table} is {not}observed"
            ));
        }
        Format::Json => {
            let json = json!({"table": table, "observed": observed});
            let json = with_bytes(json, &[("column", column)]);
            output.line(&json.to_string())?;
        }
    }
    Ok(())
}

/// Makes a table. One that is there as it is asked for will do: somebody who asks for the same at the same
/// time can't be distinguished from the one who asked first, and whose response was lost.
async fn create(client: &Client, name: &str, cuts: &[Bytes]) -> anyhow::Result<Table> {
    let there_already = match client.create_table(name, cuts).await {
        Ok(()) => None,
        Err(error @ Error::AlreadyExists(_)) => Some(error),
        Err(error) => return Err(error.into()),
    };
    let mut tables = client.tables().await?.into_iter();
    let table = tables.find(|table| table.name == name);
    match (table, there_already) {
        (Some(table), None) => Ok(table),
        (Some(table), Some(_)) if table.ready && is_cut_at(&table, cuts) => Ok(table),
        (Some(table), Some(error)) if table.ready => Err(cut_otherwise(&table, cuts, error).into()),
        (_, Some(error)) => Err(error.into()),
        (None, None) => Err(Error::UnknownTable { name: name.into() }.into()),
    }
}

fn cut_otherwise(table: &Table, cuts: &[Bytes], error: Error) -> InOtherWords {
    const SHOWN_MAX: usize = 5;
    let starts: Vec<&Bytes> = table
        .tablets
        .iter()
        .map(|tablet| &tablet.start_row)
        .collect();
    let rows = |cuts: &[&Bytes]| {
        let mut rows: Vec<String> = cuts.iter().take(SHOWN_MAX).map(|row| escape(row)).collect();
        if cuts.len() > SHOWN_MAX {
            rows.push(format!("and {} more", cuts.len() - SHOWN_MAX));
        }
        if rows.is_empty() {
            "not cut".to_owned()
        } else {
            format!("cut at {}", rows.join(", "))
        }
    };
    InOtherWords {
        message: format!(
            "there is a table {} already, {}, and this asks for one that is {}",
            table.name,
            rows(starts.get(1..).unwrap_or_default()),
            rows(&cuts.iter().collect::<Vec<_>>()),
        ),
        error,
    }
}

/// Whether the tablets begin at these rows, and at the first.
fn is_cut_at(table: &Table, cuts: &[Bytes]) -> bool {
    let starts = table.tablets.iter().map(|tablet| &tablet.start_row);
    starts.skip(1).eq(cuts)
}

/// Prints the tables.
pub(crate) async fn list(client: &Client, output: Output) -> anyhow::Result<()> {
    let tables = client.cluster().await?.tables;
    let lost = lost(client).await?;
    if output.format == Format::Json {
        for table in &tables {
            output.line(&serde_json::to_string(&TableJson::new(table, &lost))?)?;
        }
        return Ok(());
    }
    let mut rows = vec![
        ["TABLE", "ID", "STATE", "TABLETS"]
            .map(String::from)
            .to_vec(),
    ];
    rows.extend(tables.iter().map(|table| {
        vec![
            table.name.clone(),
            table.id.to_string(),
            state(table, &lost),
            how_many(&table.tablets),
        ]
    }));
    if tables.is_empty() {
        output.note("no tables");
    } else {
        output.line(&columns(&rows))?;
    }
    Ok(())
}

/// The servers of its tablets that are away, each once.
fn away(table: &Table) -> BTreeSet<&str> {
    let away = table.tablets.iter().filter(|tablet| !tablet.server_alive);
    away.map(|tablet| tablet.server.as_str()).collect()
}

/// The numbers of tablets that are lost.
pub(crate) type LostTablets = BTreeSet<u64>;

pub(crate) async fn lost(client: &Client) -> Result<LostTablets, Error> {
    let servers = client.servers().await?.into_iter();
    Ok(servers.flat_map(|server| server.lost_tablets).collect())
}

/// What is missing of a table; of one that is being made or deleted, besides what is under way.
fn missing(table: &Table, lost: &LostTablets) -> Vec<String> {
    let mut missing = Vec::new();
    let away: Vec<&str> = away(table).into_iter().collect();
    if !away.is_empty() {
        missing.push(format!("{} away", away.join(" and ")));
    }
    let tablets = table.tablets.iter();
    missing.extend(
        tablets
            .filter(|tablet| lost.contains(&tablet.id))
            .map(|tablet| format!("{} has lost tablet {}", tablet.server, tablet.id)),
    );
    if !table.ready && !table.deleting {
        missing.extend(gaps(&table.tablets));
    }
    missing
}

/// `ready`, or what is missing.
fn state(table: &Table, lost: &LostTablets) -> String {
    match (table.deleting, table.ready, missing(table, lost).join(", ")) {
        (true, _, missing) if missing.is_empty() => "deleting".to_owned(),
        (true, _, missing) => format!("deleting, {missing}"),
        (false, true, missing) if missing.is_empty() => "ready".to_owned(),
        (false, false, missing) if missing.is_empty() => "not ready".to_owned(),
        (false, _, missing) => format!("not ready: {missing}"),
    }
}

/// Rows that none of these tablets has, which are in order.
fn gaps(tablets: &[Tablet]) -> Vec<String> {
    let mut gaps = Vec::new();
    // From here on nothing has been met; `None`: the last row has.
    let mut open = Some(&b""[..]);
    let first_rows = tablets.iter().map(|tablet| Some(&tablet.start_row[..]));
    let ends = tablets.iter().map(|tablet| &tablet.end_row[..]);
    for (next, end) in first_rows.chain([None]).zip(ends.chain([&b""[..]])) {
        match (open, next) {
            (Some(from), Some(to)) if from < to => {
                gaps.push(format!(
                    "rows from {} up to {} not reported",
                    edge(from),
                    escape(to)
                ));
            }
            (Some(from), None) => gaps.push(format!("rows from {} on not reported", edge(from))),
            _ => {}
        }
        open = (!end.is_empty()).then_some(end);
    }
    gaps
}

/// The owner, and since when it is away, or that it has lost the tablet.
pub(crate) fn server(tablet: &Tablet, lost: &LostTablets) -> String {
    let moving = match &tablet.moving_to {
        Some((to, bytes)) => format!(", moving to {to} ({} of it there)", size(*bytes)),
        None => String::new(),
    };
    let away = match (tablet.server_alive, tablet.server_silence) {
        (true, _) if lost.contains(&tablet.id) => ", which has lost it".to_owned(),
        (true, _) => String::new(),
        (false, Some(silence)) => format!(", away for {} s", silence.as_secs()),
        (false, None) => ", silent since this master leads".to_owned(),
    };
    format!("{}{away}{moving}", tablet.server)
}

fn how_many(tablets: &[Tablet]) -> String {
    let away = tablets.iter().filter(|tablet| !tablet.server_alive).count();
    match away {
        0 => tablets.len().to_string(),
        away => format!("{away} of {} away", tablets.len()),
    }
}

pub(crate) fn edge(row: &[u8]) -> String {
    if row.is_empty() {
        "-".to_owned()
    } else {
        escape(row)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn table(ready: bool, deleting: bool, tablets: &[(&'static str, &'static str, bool)]) -> Table {
        let tablet =
            |(number, (start, end, alive)): (usize, &(&'static str, &'static str, bool))| Tablet {
                moving_to: None,
                bytes: 0,
                load: 0,
                id: number as u64,
                start_row: (*start).into(),
                end_row: (*end).into(),
                epoch: 1,
                frozen: deleting,
                server: format!("tablet-{}", number % 2),
                server_alive: *alive,
                server_silence: None,
            };
        Table {
            name: "t".into(),
            id: 1,
            ready,
            deleting,
            tablets: tablets.iter().enumerate().map(tablet).collect(),
        }
    }

    /// A copy of it is no reason to leave out that nobody serves it.
    #[test]
    fn an_owner_that_is_away_is_named_so_while_its_tablet_moves() {
        let mut tablet = table(true, false, &[("", "", false)]).tablets.remove(0);
        tablet.moving_to = Some(("tablet-1".into(), 5));
        tablet.server_silence = Some(Duration::from_secs(40));
        let words = "tablet-0, away for 40 s, moving to tablet-1 (5 B of it there)";
        assert_eq!(server(&tablet, &BTreeSet::new()), words);
        tablet.server_alive = true;
        let words = "tablet-0, moving to tablet-1 (5 B of it there)";
        assert_eq!(server(&tablet, &BTreeSet::new()), words);
    }

    #[test]
    fn the_state_names_what_is_missing() {
        let state = |table: &Table| super::state(table, &BTreeSet::new());
        let whole = [("", "m", true), ("m", "", true)];
        assert_eq!(state(&table(true, false, &whole)), "ready");
        assert_eq!(state(&table(false, false, &whole)), "not ready");
        assert_eq!(state(&table(false, true, &whole)), "deleting");
        let lost = [("", "g", false), ("g", "m", false), ("m", "", false)];
        let both = "tablet-0 and tablet-1 away";
        assert_eq!(
            state(&table(true, false, &lost)),
            format!("not ready: {both}")
        );
        assert_eq!(
            state(&table(true, true, &lost)),
            format!("deleting, {both}")
        );
        let parts = [("b", "g", true), ("m", "p", false)];
        assert_eq!(
            state(&table(false, false, &parts)),
            "not ready: tablet-1 away, rows from - up to b not reported, rows from g up to m not \
             reported, rows from p on not reported"
        );
        assert_eq!(
            state(&table(false, false, &[])),
            "not ready: rows from - on not reported"
        );
        let without_its_second = BTreeSet::from([1, 77]);
        assert_eq!(
            super::state(&table(true, false, &whole), &without_its_second),
            "not ready: tablet-1 has lost tablet 1"
        );
    }
}
