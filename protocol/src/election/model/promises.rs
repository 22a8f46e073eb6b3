//! Promises in the model: messages between processes, and what their folders keep.

use super::*;

/// Of a folder that is new: it has this name.
pub(super) fn empty_folder(replica: u64) -> PromiseRecord {
    PromiseRecord {
        replica,
        register: 0,
        term: 0,
        limit: crate::types::Timestamp::ZERO,
        is_bound: false,
    }
}

/// A response that waits for the end of a folder's write: to this process, for this call, and for a copy of this number.
#[derive(Clone, Debug)]
pub(super) struct PendingResponse {
    pub(super) to: usize,
    pub(super) call: PromiseCall,
    pub(super) copy: Option<u64>,
}

/// The process at an address.
pub(super) fn at(address: &str) -> usize {
    let process = address.strip_prefix("here:").unwrap();
    process.parse().unwrap()
}

impl World {
    /// At each tick of a process: a leader asks for promises every 200 ms in the mean, and a standby introduces itself every
    /// second.
    pub(super) fn talk(&mut self, process: usize) {
        let now = self.processes[process].clock(self.now);
        let Some(replica) = &mut self.processes[process].replica else {
            return;
        };
        if self.random.percent(30)
            && let Some(round) = replica.ask_promises(now)
        {
            self.write(process, round.record, None);
            for call in round.calls {
                let event = Event::Ask(process, call.clone());
                self.send(process, at(&call.address), event);
            }
            return;
        }
        if self.random.percent(6) && !replica.is_term_kept() {
            let record = replica.record();
            return self.write(process, record, None);
        }
        let leader = replica.introduces_to().map(at);
        if let Some(leader) = leader
            && self.random.percent(6)
        {
            let peer = Peer {
                replica: self.processes[process].folder.replica,
                address: format!("here:{process}"),
            };
            self.send(process, leader, Event::Introduced(peer));
        }
    }

    pub(super) fn promise_event(&mut self, process: usize, event: Event) {
        let now = self.processes[process].clock(self.now);
        let of = &mut self.processes[process];
        let Some(replica) = &mut of.replica else {
            return;
        };
        match event {
            Event::Ask(from, call) => {
                if let Some(record) = replica.promise(now, &call.request) {
                    let answer = PendingResponse {
                        to: from,
                        call,
                        copy: None,
                    };
                    self.write(process, record, Some(answer));
                }
            }
            Event::Written(record, answer) => {
                of.folder = record;
                match answer {
                    Some(PendingResponse { to, call, copy }) => {
                        let answer = match copy {
                            Some(number) => Event::Copied(call, number),
                            None => Event::Promised(call),
                        };
                        self.send(process, to, answer);
                    }
                    None => replica.kept(now, &record),
                }
            }
            Event::Promised(call) => replica.promised(now, &call),
            Event::Introduced(peer) => replica.introduced(now, &peer),
            _ => {}
        }
    }

    /// Writes a folder, after the writes that are under way. What isn't written when the process dies is lost.
    pub(super) fn write(
        &mut self,
        process: usize,
        record: PromiseRecord,
        answer: Option<PendingResponse>,
    ) {
        let after = self.written_after(process);
        self.push(after, process, Event::Written(record, answer));
    }

    /// Writes of the folder that haven't ended wait for so long.
    pub(super) fn hang_disk(&mut self, process: usize, ms: u64) {
        let of = &mut self.processes[process];
        of.written_at = of.written_at.max(self.now + ms);
    }

    /// When a write of the folder ends that begins now.
    pub(super) fn written_after(&mut self, process: usize) -> u64 {
        let takes = if self.random.percent(self.trouble) {
            self.random.below(2_000)
        } else {
            self.random.below(5)
        };
        let ends = (self.now + takes).max(self.processes[process].written_at);
        self.processes[process].written_at = ends;
        ends - self.now
    }

    /// A message is lost, late or doubled, as commands are.
    pub(super) fn send(&mut self, from: usize, to: usize, event: Event) {
        let is_isolated = |process: usize| self.now < self.processes[process].isolated_until;
        if is_isolated(from) || is_isolated(to) {
            return;
        }
        let (soon, late) = (1 + self.random.below(4), self.random.below(6_000));
        if !self.random.percent(self.trouble) {
            return self.push(soon, to, event);
        }
        match self.random.below(3) {
            0 => {}
            1 => self.push(late, to, event),
            _ => {
                self.push(soon, to, event.clone());
                self.push(late, to, event);
            }
        }
    }

    /// A process that is down loses its folder, unless no other one could take over then.
    pub(super) fn replace_folder(&mut self, process: usize) -> bool {
        let value = self.register.as_ref().map(|stored| &stored.value);
        let may_go = value.is_none_or(|value| {
            let is_listed = |replica: u64| {
                value.promisers.iter().any(|peer| peer.replica == replica)
                    || value.holder.as_ref().is_some_and(|h| h.replica == replica)
            };
            let others = (0..REPLICAS).filter(|other| *other != process);
            value.promisers.is_empty()
                || others
                    .map(|other| self.processes[other].folder.replica)
                    .any(is_listed)
        });
        if may_go {
            let replica = 1_000 + self.random.below(u64::MAX >> 1);
            self.processes[process].folder = empty_folder(replica);
            self.processes[process].copy = None;
        }
        may_go
    }
}
