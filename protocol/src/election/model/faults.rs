//! Repeated faults of processes and registers.

use super::*;

impl World {
    /// The next fault, and when the one after it comes.
    pub(super) fn fault(&mut self) {
        let any = usize::try_from(self.random.below(3)).unwrap();
        let leader = (0..REPLICAS)
            .find(|process| self.processes[*process].role() == Some(RoleKind::Leader))
            .unwrap_or(any);
        let pause = self.random.below(8_000);
        // Half of the worlds have little else than outages and restarts.
        let fault = if self.is_often_cut_off && self.random.percent(60) {
            [4, 5, 5, 9, 10, 11, 11, 12, 13][usize::try_from(self.random.below(9)).unwrap()]
        } else {
            self.random.below(14)
        };
        match fault {
            0..=2 => self.processes[leader].paused_until = self.now + pause,
            3 => self.processes[any].paused_until = self.now + pause,
            4 if self.processes[leader].replica.is_some() => self.stop(leader, pause / 4),
            5 if self.processes[any].replica.is_some() => self.stop(any, pause / 4),
            6 | 7 => {
                if self.processes[leader].paused_until <= self.now {
                    // One that is answered just before shows a limit that is too low.
                    let floor = self.highest;
                    let clock = self.processes[leader].clock(self.now);
                    self.grant(leader, Request { count: 2, floor }, clock);
                }
                if let Some(replica) = &mut self.processes[leader].replica {
                    replica.hand_over();
                }
            }
            9 => self.away_until = self.now + 3 * pause,
            10 => self.processes[leader].cut_off_until = self.now + 3 * pause,
            11 => self.processes[any].cut_off_until = self.now + 3 * pause,
            12 => self.processes[any].isolated_until = self.now + pause,
            13 => self.hang_disk(any, 3 * pause),
            _ => {
                let jump = i64::try_from(self.random.below(20_000)).unwrap() - 10_000;
                self.processes[any].unix_skew_ms = jump;
            }
        }
        if self.elected == Elected::States && self.random.percent(20) {
            self.states.away_until = self.now + 3 * pause;
        }
        let much = if self.is_often_cut_off { 50 } else { 30 };
        self.trouble = if self.random.percent(much) { 50 } else { 5 };
        let next = self
            .random
            .below(if self.is_often_cut_off { 2_500 } else { 5_000 });
        self.push(next, 0, Event::Fault);
    }
}
