//! Rows as text, both ways: `bob lock put start=7 primary=bob ttl=3000 min_commit=8 "3"`,
//! `bob write@8 put start=7 "3"`, `bob data@7 "x"*300`. And mutations: `put bob "3"`, `lock joe`.

use bytes::Bytes;
use percolator_protocol::txn::MetLock;
use percolator_protocol::types::{Cell, Lock, LockKind, Mutation, Write, WriteKind};

use super::args::{self, Args, read_cell, read_ts, read_value};
use super::store::Row;

pub(crate) fn row(cell: &Cell, row: &Row) -> String {
    let cell = args::cell(cell);
    match row {
        Row::Lock(record) => format!("{cell} lock {}", lock(record)),
        Row::Write(ts, record) => format!("{cell} write@{} {}", args::ts(*ts), write(record)),
        Row::Data(ts, value) => format!("{cell} data@{} {}", args::ts(*ts), args::value(value)),
    }
}

pub(crate) fn read_row(line: &str) -> Result<(Cell, Row), String> {
    let mut args = Args::read(line)?;
    let cell = read_cell(&args.expect("a cell")?)?;
    let column = args.expect("lock, write@ or data@")?;
    let row = match column.split_once('@') {
        None if column == "lock" => Row::Lock(read_lock(&mut args)?),
        Some(("write", ts)) => Row::Write(read_ts(ts)?, read_write(&mut args)?),
        Some(("data", ts)) => Row::Data(read_ts(ts)?, read_value(&args.expect("a value")?)?),
        _ => return Err(format!("{column} is no column")),
    };
    args.end()?;
    Ok((cell, row))
}

pub(crate) fn lock(lock: &Lock) -> String {
    let mut text = format!(
        "{} start={} primary={} ttl={} min_commit={}",
        kind(lock.kind),
        args::ts(lock.start_ts),
        args::cell(&lock.primary),
        lock.ttl_ms,
        args::ts(lock.min_commit_ts),
    );
    if lock.committing {
        text += " committing";
    }
    if lock.generation > 0 {
        text += &format!(" generation={}", lock.generation);
    }
    if let Some(chain) = &lock.chain {
        text += &format!(" depth={}", chain.depth);
    }
    text + &short(lock.short_value.as_ref())
}

/// The fields behind the word `lock`.
pub(crate) fn read_lock(args: &mut Args) -> Result<Lock, String> {
    Ok(Lock {
        kind: read_kind(&args.expect("a kind")?)?,
        start_ts: args.ts("start")?,
        primary: args.cell("primary")?,
        ttl_ms: args.number("ttl")?,
        min_commit_ts: args.ts("min_commit")?,
        committing: args.flag("committing"),
        generation: args.generation()?,
        short_value: read_short(args)?,
        chain: None,
    })
}

pub(crate) fn met_lock(met: &MetLock) -> String {
    format!("{} lock {}", args::cell(&met.cell), lock(&met.lock))
}

fn write(write: &Write) -> String {
    let kind = match write.kind {
        WriteKind::Put => "put",
        WriteKind::Delete => "delete",
        WriteKind::Lock => "lock",
        WriteKind::Rollback => "rollback",
    };
    let mut text = format!("{kind} start={}", args::ts(write.start_ts));
    if write.overlapped_rollback {
        text += " overlapped_rollback";
    }
    text + &short(write.short_value.as_ref())
}

fn read_write(args: &mut Args) -> Result<Write, String> {
    Ok(Write {
        kind: match args.expect("a kind")?.as_str() {
            "put" => WriteKind::Put,
            "delete" => WriteKind::Delete,
            "lock" => WriteKind::Lock,
            "rollback" => WriteKind::Rollback,
            other => return Err(format!("{other} is no kind of write record")),
        },
        start_ts: args.ts("start")?,
        overlapped_rollback: args.flag("overlapped_rollback"),
        short_value: read_short(args)?,
    })
}

fn short(value: Option<&Bytes>) -> String {
    value.map_or(String::new(), |value| format!(" {}", args::value(value)))
}

fn read_short(args: &mut Args) -> Result<Option<Bytes>, String> {
    args.word().map(|word| read_value(&word)).transpose()
}

pub(crate) fn mutation(mutation: &Mutation) -> String {
    let text = format!("{} {}", kind(mutation.kind), args::cell(&mutation.cell));
    match mutation.kind {
        LockKind::Put => format!("{text} {}", args::value(&mutation.value)),
        LockKind::Delete | LockKind::Lock => text,
    }
}

pub(crate) fn read_mutation(line: &str) -> Result<Mutation, String> {
    let mut args = Args::read(line)?;
    let kind = read_kind(&args.expect("a kind")?)?;
    let mutation = Mutation {
        kind,
        cell: read_cell(&args.expect("a cell")?)?,
        value: match kind {
            LockKind::Put => read_value(&args.expect("a value")?)?,
            LockKind::Delete | LockKind::Lock => Bytes::new(),
        },
    };
    args.end()?;
    Ok(mutation)
}

fn kind(kind: LockKind) -> &'static str {
    match kind {
        LockKind::Put => "put",
        LockKind::Delete => "delete",
        LockKind::Lock => "lock",
    }
}

fn read_kind(word: &str) -> Result<LockKind, String> {
    match word {
        "put" => Ok(LockKind::Put),
        "delete" => Ok(LockKind::Delete),
        "lock" => Ok(LockKind::Lock),
        other => Err(format!("{other} is no kind of lock")),
    }
}
