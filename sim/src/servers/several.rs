//! The process of one of several masters, for those who start it, end it and look at it.

use std::sync::Arc;
use std::time::Duration;

use super::candidate::Candidate;
use super::cant_read;
use super::master::Master;
use super::replica::Replicated;
use crate::messages::Answer;
use crate::world::World;

impl Master {
    /// Starts the process of one of several.
    pub(super) fn boot_candidate(self: &Arc<Self>, world: &Arc<World>, replicated: &Replicated) {
        let candidate = match Candidate::new(self, world, replicated) {
            Ok(candidate) => Arc::new(candidate),
            Err(error) => {
                let master = self.clone();
                return cant_read(world, self.node, &error, move |world| master.boot(world));
            }
        };
        let handler = {
            let (master, candidate) = (self.clone(), candidate.clone());
            Arc::new(move |world: &Arc<World>, caller, ask| {
                if candidate.answer_peer(caller, &ask) {
                    return;
                }
                match candidate.directory() {
                    Ok((term, running)) => {
                        let early = candidate.shows_early();
                        let (master, world2) = (master.clone(), world.clone());
                        let (candidate2, caller) = (candidate.clone(), caller);
                        let work = async move {
                            let answer = master.answer(&world2, &running, ask, early).await?;
                            candidate2.check_shown(term, &answer);
                            Some(answer)
                        };
                        candidate.answer_later(caller, work);
                    }
                    Err(leader) => world.reply(master.node, caller, Answer::NotLeader(leader)),
                }
            })
        };
        let at_kill = {
            let (master, candidate) = (self.clone(), candidate.clone());
            Box::new(move |_: &Arc<World>| {
                *master.candidate.lock() = None;
                candidate.killed();
                master.disk.crash();
            })
        };
        world.start(self.node, Some(handler), at_kill);
        *self.candidate.lock() = Some(candidate.clone());
        candidate.begin();
    }

    /// Whether this process answers as the leader now; one that is alone does.
    pub fn leads(&self) -> bool {
        if self.replicated.is_none() {
            return true;
        }
        let candidate = self.candidate.lock().clone();
        candidate.is_some_and(|candidate| candidate.serves())
    }

    /// The term of a leader that serves, and could go on now without its register.
    pub fn promised_term(&self) -> Option<u64> {
        let candidate = self.candidate.lock().clone();
        candidate?.promised_term()
    }

    /// Whether the register may lack what this master has shown.
    pub fn is_ahead(&self) -> bool {
        let candidate = self.candidate.lock().clone();
        candidate.is_some_and(|candidate| candidate.is_ahead())
    }

    /// The process of one of several is told to end in order: SIGTERM. Another one is started after this time.
    pub fn hand_over(&self, world: &Arc<World>, down: Duration) {
        if let Some(candidate) = &*self.candidate.lock() {
            world.note(|| format!("{} is told to end", self.name()));
            candidate.hand_over(down);
        }
    }
}
