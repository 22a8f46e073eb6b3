//! Latches on rows. A request holds the latches of its rows from before it loads until its batch is durable, so that what it
//! has read is still true when its writes are.
//!
//! A request queues for all of its rows in one step. So all requests queue in one global order, and no two wait for each other.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// A request that queues for latches.
pub(crate) type Ticket = u64;

/// A row, by the hash of its table and its name. Two rows with one hash only wait for each other.
pub(crate) type RowHash = u64;

/// The queues of requests, one for each row that is latched.
#[derive(Debug, Default)]
pub(crate) struct Latches {
    queues: HashMap<RowHash, VecDeque<Ticket>, BuildHasherDefault<Identity>>,
    /// The number of rows for which a request still waits.
    waiting: HashMap<Ticket, usize>,
}

impl Latches {
    /// Queues for these rows, which are sorted and without duplicates. Returns whether the request holds all of them now.
    pub(crate) fn acquire(&mut self, ticket: Ticket, rows: &[RowHash]) -> bool {
        let mut behind = 0;
        for row in rows {
            let queue = self.queues.entry(*row).or_default();
            queue.push_back(ticket);
            behind += usize::from(queue.len() > 1);
        }
        if behind > 0 {
            self.waiting.insert(ticket, behind);
        }
        behind == 0
    }

    /// Releases rows. Adds to `ready` the requests that hold all of their rows now.
    pub(crate) fn release(&mut self, ticket: Ticket, rows: &[RowHash], ready: &mut Vec<Ticket>) {
        for row in rows {
            let Some(queue) = self.queues.get_mut(row) else {
                unreachable!("row {row:x} is released twice");
            };
            let head = queue.pop_front();
            assert_eq!(head, Some(ticket), "row {row:x} is held by another request");
            let Some(next) = queue.front() else {
                self.queues.remove(row);
                continue;
            };
            if let Some(behind) = self.waiting.get_mut(next) {
                *behind -= 1;
                if *behind == 0 {
                    self.waiting.remove(next);
                    ready.push(*next);
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// A hasher for keys that are hashes already.
#[derive(Debug, Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// The latch of a row. It goes by the row's table, so that it stays when the tablet is split.
pub(crate) fn row(table: u32, row: &[u8]) -> RowHash {
    hash(&[&table.to_be_bytes(), row])
}

/// The latch of a tablet that is made or dropped.
pub(crate) fn tablet(id: u64) -> RowHash {
    hash(&[b"tablet", &id.to_be_bytes()])
}

/// The latch of a table whose tablets arrive.
pub(crate) fn table(id: u32) -> RowHash {
    hash(&[b"table", &id.to_be_bytes()])
}

/// A hash that is the same in every process and run, so that a simulated run can be replayed: FNV-1a, finished by a
/// multiplication.
pub(crate) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in *part {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash = (hash ^ part.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    hash ^ (hash >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_go_in_order_and_nobody_deadlocks() {
        let mut latches = Latches::default();
        assert!(latches.acquire(1, &[10, 20]));
        assert!(!latches.acquire(2, &[20, 30]));
        assert!(!latches.acquire(3, &[10, 30]));
        assert!(latches.acquire(4, &[40]));
        assert_eq!(latches.waiting(), 2);
        let mut ready = Vec::new();
        latches.release(1, &[10, 20], &mut ready);
        assert_eq!(ready, [2]);
        ready.clear();
        latches.release(2, &[20, 30], &mut ready);
        assert_eq!(ready, [3]);
        ready.clear();
        latches.release(3, &[10, 30], &mut ready);
        latches.release(4, &[40], &mut ready);
        assert!(ready.is_empty());
        assert!(latches.queues.is_empty() && latches.waiting.is_empty());
    }
}
