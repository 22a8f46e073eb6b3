//! What a server holds is bounded (ARCHITECTURE, "What always holds", 7): what waits in a tablet server, what
//! goes to the disk together and what goes out in one answer is within the server's limits, whatever the
//! load. A run's limits are small, so that it reaches them. What it knows of locks and tablets goes when those do, and
//! so does what the master knows of commands. The oracle holds a few numbers, whatever happens.

use percolator_tablet::{Amount, Limits, Usage};
use percolator_wire::v1;
use percolator_wire::v1::get_result::Result as Got;
use percolator_wire::v1::response::Body;

use super::Invariant;

/// The timestamp that goes with each group, in bytes of its key and value.
const REACHED_BYTES: usize = 7 + 16;

pub(super) struct BoundedMemory;

impl Invariant for BoundedMemory {
    fn name(&self) -> &'static str {
        "bounded memory"
    }

    fn holds(&mut self, held: &Usage, limits: &Limits) -> Result<(), String> {
        let writes = held.queued.count + held.decided.count + held.group.count;
        // One more is a background task of the server.
        at_most("requests", writes, limits.waiting + 1)?;
        at_most("reads", held.reads.count, limits.waiting)?;
        at_most(
            "requests of large transactions",
            held.flushes.count,
            limits.waiting,
        )?;
        let waiting = [held.queued, held.reads];
        let queued = Amount {
            count: waiting.iter().map(|amount| amount.count).sum(),
            bytes: waiting.iter().map(|amount| amount.bytes).sum(),
            largest_bytes: waiting
                .iter()
                .map(|amount| amount.largest_bytes)
                .max()
                .unwrap_or(0),
        };
        one_above("bytes of requests that wait", queued, limits.queued_bytes)?;
        let turn = "bytes of requests of large transactions";
        one_above(turn, held.flushes, limits.queued_bytes)?;
        // Besides, a full disk hands back what it refused for others' sake.
        let decided = limits.decided_bytes + limits.group_bytes;
        one_above("bytes of decided batches", held.decided, decided)?;
        if held.group.count > 1 {
            let most = limits.group_bytes + held.group.count * REACHED_BYTES;
            at_most("bytes of batches in a group", held.group.bytes, most)?;
        }
        // One set of slots is the least.
        let cache = 2 * limits.cache_bytes.max(1024) as usize;
        at_most("bytes of the cache", held.cache_bytes, cache)?;
        at_most("tablets with marks of scans", held.scan_marks, held.tablets)
    }

    fn master_holds(&mut self, held: &percolator_gc_master::DirectoryStats) -> Result<(), String> {
        at_most(
            "live servers of the master",
            held.live_servers,
            held.servers,
        )?;
        let failures = held.servers * held.tablets;
        at_most("causes of failed commands", held.failures, failures)
    }

    /// The filter of locked cells has those, and no others.
    fn locks(&mut self, counted: usize, stored: usize) -> Result<(), String> {
        if counted != stored {
            return Err(format!(
                "{counted} locks are counted in memory, and {stored} are stored"
            ));
        }
        Ok(())
    }

    fn answered(&mut self, response: &v1::Response, limits: &Limits) -> Result<(), String> {
        match &response.body {
            Some(Body::Scan(scan)) => {
                at_most("cells of a scan", scan.cells.len(), limits.scan_cells)?;
                at_most("locks of a scan", scan.locked.len(), limits.scan_locks)?;
                let cell = |cell: &v1::ScannedCell| {
                    cell.row.len() + cell.column.len() + cell.value.len() + 16
                };
                let cells = Amount::of(scan.cells.iter().map(cell));
                one_above("bytes of a scan", cells, limits.scan_bytes)
            }
            Some(Body::Get(get)) => {
                let value = |got: &v1::GetResult| match &got.result {
                    Some(Got::Found(found)) => found.value.len(),
                    _ => 0,
                };
                let values = Amount::of(get.results.iter().map(value));
                one_above("bytes of a get", values, limits.get_bytes)
            }
            _ => Ok(()),
        }
    }
}

fn at_most(what: &str, held: usize, limit: usize) -> Result<(), String> {
    if held > limit {
        return Err(format!("{held} {what}, the limit is {limit}"));
    }
    Ok(())
}

/// One may go over the limit: whichever came last, so the others are below it without the largest.
fn one_above(what: &str, held: Amount, limit: usize) -> Result<(), String> {
    if held.count > 1 && held.bytes - held.largest_bytes > limit {
        return Err(format!(
            "{} {what} without the largest, the limit is {limit}",
            held.bytes - held.largest_bytes
        ));
    }
    Ok(())
}
