//! The process of one of several masters, as the faults and the invariants use it.

use std::sync::Arc;
use std::time::Duration;

use super::cant_read;
use super::elected_master::ElectedMaster;
use super::master::Master;
use super::replica::Replicated;
use crate::messages::{Answer, Ask};
use crate::world::World;

impl Master {
    /// Starts the process of one of several.
    pub(super) fn boot_elected(self: &Arc<Self>, world: &Arc<World>, replicated: &Replicated) {
        let elected = match ElectedMaster::new(self, world, replicated) {
            Ok(elected) => Arc::new(elected),
            Err(error) => {
                let master = self.clone();
                return cant_read(world, self.node, &error, move |world| master.boot(world));
            }
        };
        let handler = {
            let (master, elected) = (self.clone(), elected.clone());
            Arc::new(move |_: &Arc<World>, caller, ask| {
                if elected.answer_peer(caller, &ask) {
                    return;
                }
                let (master, elected) = (master.clone(), elected.clone());
                elected.clone().answer_later(caller, async move {
                    let waits = matches!(
                        ask,
                        Ask::CreateTable(_)
                            | Ask::DeleteTable(_)
                            | Ask::SplitTable(_)
                            | Ask::MergeTable(_)
                            | Ask::MoveTablet(_)
                    );
                    match elected.admit(waits) {
                        Ok((runner, _waiting)) => {
                            let term = runner.term();
                            let answer = master.answer(runner, ask).await?;
                            elected.check_shown(term, &answer);
                            Some(answer)
                        }
                        Err(leader) => Some(Answer::NotLeader(leader)),
                    }
                });
            })
        };
        let at_kill = {
            let (master, elected) = (self.clone(), elected.clone());
            Box::new(move |_: &Arc<World>| {
                *master.elected.lock() = None;
                elected.killed();
                master.disk.crash();
            })
        };
        world.start(self.node, Some(handler), at_kill);
        *self.elected.lock() = Some(elected.clone());
        elected.begin();
    }

    /// Whether this process answers as the leader now; one that is alone does.
    pub fn leads(&self) -> bool {
        if self.replicated.is_none() {
            return true;
        }
        let elected = self.elected.lock().clone();
        elected.is_some_and(|elected| elected.serves())
    }

    /// The term of a leader that serves, and could go on now without its register.
    pub fn promised_term(&self) -> Option<u64> {
        let elected = self.elected.lock().clone();
        elected?.promised_term()
    }

    /// Whether this master has shown what the register may not have.
    pub fn is_ahead(&self) -> bool {
        let elected = self.elected.lock().clone();
        elected.is_some_and(|elected| elected.is_ahead())
    }

    /// Whether this process was asked to end in order, and still runs.
    pub fn is_ending(&self) -> bool {
        let elected = self.elected.lock().clone();
        elected.is_some_and(|elected| elected.is_ending())
    }

    /// The process of one of several is asked to end in order: SIGTERM. Another one is started after this time.
    pub fn hand_over(&self, world: &Arc<World>, down: Duration) {
        if let Some(elected) = &*self.elected.lock() {
            world.note(|| format!("{} is asked to end", self.name()));
            elected.hand_over(down);
        }
    }
}
