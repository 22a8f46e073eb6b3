//! Transactions that wait for a turn at a cell that many want to write. A transaction that has lost the cell to another one
//! waits here before it begins again, so that few try at a time, the oldest first. It is advisory: no decision depends on it,
//! and no turn lasts long, even if its transaction has died.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long a turn lasts if the cell isn't written: a transaction usually takes less. Then the next one has its turn.
const TURN: Duration = Duration::from_millis(50);
/// How often turns and waits are checked: they last up to this much longer.
pub(crate) const TICK: Duration = Duration::from_millis(25);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The cells, by the hashes of their keys, and the transactions that wait for them. Cells of one hash share their turns.
#[derive(Debug)]
pub(crate) struct WaitQueue<W> {
    cells: BTreeMap<u64, Turns<W>>,
    waiting: usize,
    waiting_max: usize,
}

#[derive(Debug)]
struct Turns<W> {
    /// `None`: another transaction's lock is on the cell, or none has a turn.
    holder: Option<u64>,
    /// The rest of the turn; `None`: it has begun since the last tick.
    left: Option<Duration>,
    /// The waiting transactions, by when their first attempt began.
    queue: BTreeMap<u64, Waiting<W>>,
}

#[derive(Debug)]
struct Waiting<W> {
    who: W,
    left: Duration,
}

/// The end of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Woken<W> {
    /// The transaction has its turn.
    Granted(W),
    /// The transaction has waited for its longest time, or too many wait.
    Unserved(W),
}

impl<W> WaitQueue<W> {
    /// Makes a queue in which at most `waiting_max` transactions wait.
    pub(crate) fn new(waiting_max: usize) -> Self {
        Self {
            cells: BTreeMap::new(),
            waiting: 0,
            waiting_max,
        }
    }

    /// The number of waiting transactions.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether no cell has a turn.
    pub(crate) fn is_idle(&self) -> bool {
        self.cells.is_empty()
    }

    /// Requests a turn at the cell for the transaction whose first attempt began at `waiter`. `locked`: a lock may be on the
    /// cell, whose transaction has the turn. Returns the request that need not wait: this one, or an older one of the same
    /// transaction.
    pub(crate) fn ask(
        &mut self,
        cell: u64,
        waiter: u64,
        timeout: Duration,
        locked: bool,
        who: W,
    ) -> Option<Woken<W>> {
        let too_many = self.cells.len() >= self.waiting_max;
        let turns = match self.cells.get_mut(&cell) {
            // The turn continues, or there is none.
            Some(turns) if turns.holder == Some(waiter) => {
                turns.left = None;
                return Some(Woken::Granted(who));
            }
            Some(turns) => turns,
            None if too_many => return Some(Woken::Unserved(who)),
            None => {
                let turns = Turns {
                    holder: (!locked).then_some(waiter),
                    left: None,
                    queue: BTreeMap::new(),
                };
                let turns = self.cells.entry(cell).or_insert(turns);
                if !locked {
                    return Some(Woken::Granted(who));
                }
                turns
            }
        };
        if self.waiting >= self.waiting_max {
            return Some(Woken::Unserved(who));
        }
        let left = timeout.min(WAIT_MAX);
        let earlier = turns.queue.insert(waiter, Waiting { who, left });
        if let Some(earlier) = earlier {
            return Some(Woken::Unserved(earlier.who));
        }
        self.waiting += 1;
        None
    }

    /// Ends the turn at the cell, because a transaction that wrote or locked it has ended. Returns the next one.
    pub(crate) fn ended(&mut self, cell: u64) -> Option<Woken<W>> {
        let turns = self.cells.get_mut(&cell)?;
        let Some((waiter, next)) = turns.queue.pop_first() else {
            self.cells.remove(&cell);
            return None;
        };
        self.waiting -= 1;
        turns.holder = Some(waiter);
        turns.left = None;
        Some(Woken::Granted(next.who))
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, elapsed: Duration) -> Vec<Woken<W>> {
        let mut woken = Vec::new();
        let mut lapsed = Vec::new();
        for (cell, turns) in &mut self.cells {
            for waiting in turns.queue.values_mut() {
                waiting.left = waiting.left.saturating_sub(elapsed);
            }
            let tired = turns
                .queue
                .iter()
                .filter(|(_, waiting)| waiting.left.is_zero());
            let tired: Vec<u64> = tired.map(|(waiter, _)| *waiter).collect();
            self.waiting -= tired.len();
            let tired = tired.iter().filter_map(|waiter| turns.queue.remove(waiter));
            woken.extend(tired.map(|waiting| Woken::Unserved(waiting.who)));
            turns.left = Some(match turns.left {
                Some(left) => left.saturating_sub(elapsed),
                // The turn began at some time within the elapsed one.
                None => TURN,
            });
            if turns.left == Some(Duration::ZERO) {
                lapsed.push(*cell);
            }
        }
        woken.extend(lapsed.into_iter().filter_map(|cell| self.ended(cell)));
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Woken::{Granted, Unserved};

    const LONG: Duration = Duration::from_secs(5);

    fn queue() -> WaitQueue<&'static str> {
        WaitQueue::new(3)
    }

    #[test]
    fn the_oldest_is_next() {
        let mut queue = queue();
        assert_eq!(queue.ask(1, 30, LONG, false, "a"), Some(Granted("a")));
        assert_eq!(queue.ask(1, 40, LONG, false, "b"), None);
        assert_eq!(queue.ask(1, 20, LONG, false, "c"), None);
        assert_eq!(
            queue.ask(2, 50, LONG, false, "other cell"),
            Some(Granted("other cell"))
        );
        assert_eq!(queue.ended(1), Some(Granted("c")));
        // The turn continues.
        assert_eq!(queue.ask(1, 20, LONG, false, "c"), Some(Granted("c")));
        assert_eq!(queue.ended(1), Some(Granted("b")));
        assert_eq!(queue.ended(1), None);
        assert_eq!(queue.ended(1), None);
        assert_eq!(queue.ended(2), None);
        assert!(queue.is_idle() && queue.waiting() == 0);
    }

    #[test]
    fn who_has_the_lock_has_the_turn() {
        let mut queue = queue();
        assert_eq!(queue.ask(1, 30, LONG, true, "a"), None);
        assert_eq!(queue.ended(1), Some(Granted("a")));
    }

    #[test]
    fn a_turn_ends_although_nothing_is_written() {
        let mut queue = queue();
        queue.ask(1, 30, LONG, false, "a");
        queue.ask(1, 40, LONG, false, "b");
        // The turn may have begun just now.
        assert_eq!(queue.tick(LONG / 2), []);
        assert_eq!(queue.tick(TURN / 2), []);
        assert_eq!(queue.tick(TURN / 2), [Granted("b")]);
        assert_eq!(queue.tick(TURN), []);
        assert_eq!(queue.tick(TURN), []);
        assert!(queue.is_idle());
    }

    #[test]
    fn nobody_waits_for_ever_and_not_too_many_do() {
        let mut queue = queue();
        queue.ask(1, 1, LONG, false, "holder");
        assert_eq!(queue.ask(1, 2, TICK, false, "a"), None);
        assert_eq!(queue.ask(1, 3, LONG, false, "b"), None);
        // The request is repeated, as after a lost connection.
        assert_eq!(queue.ask(1, 3, LONG, false, "b again"), Some(Unserved("b")));
        assert_eq!(queue.ask(1, 4, LONG, false, "c"), None);
        assert_eq!(queue.ask(1, 5, LONG, false, "d"), Some(Unserved("d")));
        assert_eq!(queue.tick(TICK), [Unserved("a")]);
        assert_eq!(queue.waiting(), 2);
        for cell in 2..=3 {
            queue.ask(cell, 1, LONG, false, "x");
        }
        assert_eq!(queue.ask(4, 1, LONG, false, "x"), Some(Unserved("x")));
    }
}
