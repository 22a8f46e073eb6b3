//! The commands that run a rule:
//!
//! | command | further lines |
//! |---|---|
//! | `rows` | rows to put, whatever the rules think of them |
//! | `prewrite start=7 primary=bob [ttl=3000] [one-phase=9] [generation=1]` | mutations: `put bob "3"`, `delete joe`, `lock ann` |
//! | `commit start=7 at=8 bob ..` | |
//! | `rollback start=7 bob ..` | |
//! | `resolve start=7 [at=8] [from=a] [limit=2]` | |
//! | `check-status start=7 primary=bob now=9 [push=8] [force] [met-ttl=3000]` | |
//! | `keep-alive start=7 primary=bob ttl=5000` | |
//! | `get at=8 [bypass=7,5] [own] bob ..` | |
//! | `gc at=8 [most=1] bob ..` | |
//! | `points barrier=8 [safe_point=7] start=6 [bob ..]` | what they refuse of that transaction: prewrites; and, where the cells show nothing of it, to say what became of it |
//! | `scan at=8 [bypass=7,5] [own] [from=a] [to=c] [reverse] [limit=2]` | |

use bytes::Bytes;
use percolator_protocol::actions::{Prewrite, ScanEnd, Snapshot, StatusQuery};
use percolator_protocol::safe_point::{Points, TooOld};
use percolator_protocol::txn::{Ending, after_status_read};
use percolator_protocol::types::{Cell, Lock, Mutation, Timestamp};

use super::args::{self, Args, read_ts};
use super::store::{ReadResult, ScanRange, Store};
use super::{outcomes, rows};

pub(crate) const TTL_MS: u64 = 3000;

#[expect(clippy::too_many_lines, reason = "one story in its order")]
pub(crate) fn run(
    store: &mut Store,
    name: &str,
    args: &str,
    input: &[String],
) -> Result<Vec<String>, String> {
    let mut args = Args::read(args)?;
    if !input.is_empty() && !matches!(name, "rows" | "prewrite") {
        return Err(format!("{name} takes no further lines"));
    }
    let output = match name {
        "rows" => {
            for line in input {
                let (cell, row) = rows::read_row(line)?;
                store.put_row(&cell, row);
            }
            Vec::new()
        }
        "prewrite" => {
            let txn = Prewrite {
                start_ts: args.ts("start")?,
                primary: args.cell("primary")?,
                ttl_ms: ttl(&mut args, "ttl")?,
                generation: args.generation()?,
                chain: None,
            };
            let mutations: Result<Vec<Mutation>, String> =
                input.iter().map(|line| rows::read_mutation(line)).collect();
            let one_phase = args.named("one-phase").map(|ts| read_ts(&ts)).transpose()?;
            let prewritten = match one_phase {
                Some(commit_ts) => match store.one_phase(&txn, &mutations?, commit_ts) {
                    Ok(None) => return Ok(vec![format!("committed {}", args::ts(commit_ts))]),
                    Ok(Some(min_commit_ts)) => Ok(min_commit_ts),
                    Err(rejections) => Err(rejections),
                },
                None => store.prewrite(&txn, &mutations?),
            };
            match prewritten {
                Ok(least) => vec![format!("ok{}", outcomes::min_commit(txn.start_ts, least))],
                Err(rejections) => rejections
                    .iter()
                    .map(|(cell, rejection)| outcomes::rejection(cell, rejection))
                    .collect(),
            }
        }
        "commit" => {
            let (start_ts, commit_ts) = (args.ts("start")?, args.ts("at")?);
            let commit = |cell| {
                let result = store.commit(start_ts, commit_ts, &cell);
                format!("{} {}", args::cell(&cell), outcomes::commit(&result))
            };
            args.cells()?.into_iter().map(commit).collect()
        }
        "rollback" => {
            let start_ts = args.ts("start")?;
            let rollback = |cell| match store.rollback(start_ts, &cell) {
                Ok(()) => format!("{} ok", args::cell(&cell)),
                Err(already) => format!(
                    "{} committed {}",
                    args::cell(&cell),
                    args::ts(already.commit_ts)
                ),
            };
            args.cells()?.into_iter().map(rollback).collect()
        }
        "resolve" => {
            let start_ts = args.ts("start")?;
            let commit_ts = args.named("at").map(|ts| read_ts(&ts)).transpose()?;
            let from = args
                .named("from")
                .map(|text| args::read_cell(&text))
                .transpose()?;
            let limit = args.named("limit");
            let limit = limit.map_or(Ok(u64::MAX), |text| args::read_number(&text))?;
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let ending = commit_ts.map_or(Ending::RolledBack, Ending::Committed);
            let (cells, more) = store.resolve(start_ts, ending, from.as_ref(), limit);
            let mut lines: Vec<String> = cells.iter().map(args::cell).collect();
            lines.push(if more { "more" } else { "done" }.into());
            lines
        }
        "check-status" => {
            let push = args.named("push");
            let query = StatusQuery {
                start_ts: args.ts("start")?,
                now: args.ts("now")?,
                push_past: push.map(|ts| read_ts(&ts)).transpose()?,
                force: args.flag("force"),
                met_ttl_ms: ttl(&mut args, "met-ttl")?,
            };
            match store.check_status(&args.cell("primary")?, &query) {
                Ok(status) => {
                    let mut lines = vec![outcomes::status(status)];
                    if let Some(snapshot) = query.push_past {
                        let next = after_status_read(status, snapshot);
                        lines.push(format!("the reader: {}", outcomes::read_next(next)));
                    }
                    lines
                }
                Err(not) => vec![format!("the primary is {}", args::cell(&not.primary))],
            }
        }
        "keep-alive" => {
            let (primary, start_ts) = (args.cell("primary")?, args.ts("start")?);
            match store.keep_alive(&primary, start_ts, args.number("ttl")?) {
                Some(ttl_ms) => vec![format!("ttl={ttl_ms}")],
                None => vec!["lock-missing".into()],
            }
        }
        "get" => {
            let (ts, bypass) = snapshot(&mut args)?;
            let snapshot = Snapshot {
                ts,
                bypass: &bypass,
                own: args.flag("own"),
            };
            let get = |cell: Cell| match store.get(snapshot, &cell) {
                ReadResult::Value(value) => {
                    format!("{} {}", args::cell(&cell), args::value(&value))
                }
                ReadResult::Absent => format!("{} absent", args::cell(&cell)),
                ReadResult::Locked(lock) => locked(&cell, &lock),
                ReadResult::RolledBack => format!("{} rolled-back", args::cell(&cell)),
            };
            args.cells()?.into_iter().map(get).collect()
        }
        "gc" => {
            let safe_point = args.ts("at")?;
            let resolved = args.named("resolved").map(|ts| read_ts(&ts));
            let points = Points {
                barrier: safe_point,
                safe_point,
                resolved: resolved.transpose()?.unwrap_or(safe_point),
            };
            let most = args.named("most");
            let most = most.map_or(Ok(u64::MAX), |text| args::read_number(&text))?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let collect = |cell| {
                let collected = store.gc(points, &cell, most);
                let more = if collected.done { "" } else { ", and more" };
                format!(
                    "{} collected {}{more}",
                    args::cell(&cell),
                    collected.records
                )
            };
            args.cells()?.into_iter().map(collect).collect()
        }
        "points" => {
            let barrier = args.ts("barrier")?;
            let safe_point = args
                .named("safe_point")
                .map(|ts| read_ts(&ts))
                .transpose()?;
            let points = Points {
                barrier,
                safe_point: safe_point.unwrap_or(barrier),
                resolved: Timestamp::ZERO,
            };
            let start_ts = args.ts("start")?;
            let says = |what: String, result: Result<(), TooOld>| match result {
                Ok(()) => format!("{what} admitted"),
                Err(too_old) => format!("{what} too old: below {}", args::ts(too_old.barrier)),
            };
            let mut lines = vec![
                says("read".into(), points.admit_read(start_ts)),
                says("prewrite".into(), points.admit_prewrite(start_ts)),
            ];
            for cell in args.cells()? {
                let known = points.recall(&store.view(&cell, start_ts, None), start_ts);
                lines.push(says(format!("{} recall", args::cell(&cell)), known));
            }
            lines
        }
        "scan" => {
            let (ts, bypass) = snapshot(&mut args)?;
            let snapshot = Snapshot {
                ts,
                bypass: &bypass,
                own: args.flag("own"),
            };
            let cell = |text: Option<String>| text.map(|text| args::read_cell(&text)).transpose();
            let limit = args.named("limit");
            let range = ScanRange {
                from: cell(args.named("from"))?,
                to: cell(args.named("to"))?,
                reverse: args.flag("reverse"),
                limit: limit
                    .map(|limit| args::read_number(&limit))
                    .transpose()?
                    .map(|n| n as usize),
            };
            scan_lines(store.scan(snapshot, &range))
        }
        other => return Err(format!("{other} is no command")),
    };
    args.end()?;
    Ok(output)
}

fn scan_lines((found, end): (Vec<(Cell, Bytes)>, ScanEnd<Cell>)) -> Vec<String> {
    let found = found.iter();
    let mut lines: Vec<String> = found
        .map(|(cell, value)| format!("{} {}", args::cell(cell), args::value(value)))
        .collect();
    lines.push(match end {
        ScanEnd::Done => "done".into(),
        ScanEnd::Stopped => "stopped".into(),
        ScanEnd::Locked(cell, lock) => locked(&cell, &lock),
        ScanEnd::RolledBack(cell) => format!("{} rolled-back", args::cell(&cell)),
    });
    lines
}

fn locked(cell: &Cell, lock: &Lock) -> String {
    format!("{} locked {}", args::cell(cell), rows::lock(lock))
}

fn ttl(args: &mut Args, name: &str) -> Result<u64, String> {
    args.named(name)
        .map_or(Ok(TTL_MS), |text| args::read_number(&text))
}

fn snapshot(args: &mut Args) -> Result<(Timestamp, Vec<Timestamp>), String> {
    let bypass = args.named("bypass").unwrap_or_default();
    let bypass = bypass.split(',').filter(|ts| !ts.is_empty());
    Ok((
        args.ts("at")?,
        bypass.map(read_ts).collect::<Result<_, _>>()?,
    ))
}
