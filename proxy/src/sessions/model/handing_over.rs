//! How what participants have written comes to the manager's proxy, from there or from another one, with requests and answers
//! that are lost.

use super::*;

impl World {
    pub(super) fn finish(&mut self) -> Checked {
        let Some(at) = self.some_part() else {
            return Ok(());
        };
        match self.remote[at].clone() {
            None => self.finish_here(at).map(drop),
            Some(remote) => self.finish_there(at, &remote),
        }
    }

    /// At the manager's proxy: what is answered.
    fn finish_here(&mut self, at: usize) -> Result<Result<(), Refusal>, String> {
        let name = self.local[at].clone();
        match self.here.finishing(self.now, &name) {
            Ok(FinishStep::Done) => {
                check(self.parts[at].is_given, || format!("{name} is not given"))?;
                return Ok(Ok(()));
            }
            Ok(FinishStep::Begin { .. }) => {}
            Err(refusal) => {
                self.refused(&name, &refusal)?;
                return Ok(Err(refusal));
            }
        }
        if self.rng.percent(20) {
            // A write that came with it is refused.
            self.here.commit_not_begun(self.now, &name);
            return Ok(Err(Refusal::Committing));
        }
        match self.here.give(self.now, &name) {
            Ok(_) => {
                let stage = self.managers[self.parts[at].manager];
                check(stage == Stage::Open, || {
                    format!("{name} has given to one that is {stage:?}")
                })?;
                self.parts[at].is_given = true;
                Ok(Ok(()))
            }
            Err(refusal) => {
                let end = SessionEnd::ManagerGone;
                self.here.finish(self.now, &name, end.clone());
                self.answered(&name, &end)?;
                Ok(Err(refusal))
            }
        }
    }

    /// At the other proxy, which sends what was written to the manager's.
    fn finish_there(&mut self, at: usize, remote: &str) -> Checked {
        let again = match self.there.finishing(self.now, remote) {
            Ok(FinishStep::Done) => {
                return check(self.parts[at].is_given, || format!("{remote} is not given"));
            }
            Ok(FinishStep::Begin { is_sealed, .. }) => is_sealed,
            Err(refusal) => return self.refused(remote, &refusal),
        };
        let part = &mut self.parts[at];
        let sent = *part.sealed.get_or_insert(part.written);
        check(again || sent == part.written, || {
            format!("{remote} sends something else")
        })?;
        self.there.seal(remote);
        if self.rng.percent(25) {
            self.there.commit_not_begun(self.now, remote);
            return Ok(());
        }
        let answer = self.finish_here(at)?;
        if self.rng.percent(25) {
            self.there.commit_not_begun(self.now, remote);
            return Ok(());
        }
        let end = match answer {
            Ok(()) => SessionEnd::Finished,
            Err(Refusal::Committing) => {
                self.there.commit_not_begun(self.now, remote);
                return Ok(());
            }
            Err(Refusal::Unknown) if again => SessionEnd::HandOverUnknown,
            Err(Refusal::Unknown) => SessionEnd::ManagerGone,
            Err(_) => SessionEnd::Aborted,
        };
        self.there.finish(self.now, remote, end.clone());
        self.answered(remote, &end)
    }

    /// The other proxy says that a participant of its own is still there.
    pub(super) fn keep_alive(&mut self) -> Checked {
        let Some(at) = self.some_part() else {
            return Ok(());
        };
        let Some(remote) = self.remote[at].clone() else {
            return Ok(());
        };
        let name = self.local[at].clone();
        let end = match self.here.call(self.now, &name) {
            Ok((_, client)) => {
                self.here.call_done(self.now, &name, client);
                return Ok(());
            }
            Err(Refusal::Ended(SessionEnd::Finished)) => SessionEnd::Finished,
            Err(Refusal::Unknown) if self.parts[at].sealed.is_some() => SessionEnd::HandOverUnknown,
            Err(Refusal::Unknown | Refusal::Ended(_)) => SessionEnd::ManagerGone,
            Err(_) => return Ok(()),
        };
        if self.there.abort(self.now, &remote, end.clone()).is_some() {
            return self.answered(&remote, &end);
        }
        Ok(())
    }
}
