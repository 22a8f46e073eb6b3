//! A transaction is committed on all of its cells, over tables and servers, at one commit_ts, or on none
//! (paper, section 2.2).

use super::Invariant;
use crate::watch::End;

pub(super) struct Atomicity;

impl Invariant for Atomicity {
    fn name(&self) -> &'static str {
        "atomic"
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        for record in end.history {
            let start_ts = record.start_ts;
            let mut seen = None;
            for write in &record.writes {
                let cell = write.cell.cell(end.tables);
                let commit_ts = end.store.versions.get(&cell).and_then(|versions| {
                    let ours = versions.iter().find(|version| version.start_ts == start_ts);
                    ours.map(|version| version.commit_ts)
                });
                match &seen {
                    None => seen = Some((commit_ts, &write.cell)),
                    Some((other_ts, _)) if *other_ts == commit_ts => {}
                    Some((other_ts, other)) => {
                        return Err(format!(
                            "transaction {start_ts} of {} is committed on {other} at {} and on {} at {}",
                            record.client,
                            shown(*other_ts),
                            write.cell,
                            shown(commit_ts)
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

fn shown(ts: Option<percolator_protocol::types::Timestamp>) -> String {
    ts.map_or_else(|| "no time".to_owned(), |ts| ts.to_string())
}
