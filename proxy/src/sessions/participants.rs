//! Sessions that share a transaction. The manager is the session that began it; participants have joined. Each reads the snapshot and
//! what it has written itself. A participant hands over what it has written when it finishes, and the manager commits all of it. A
//! transaction is committed with all its participants or not at all: one that ends otherwise, or has not finished when the
//! manager commits, aborts it.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use super::mutants::{self, SessionMutant};
use super::{Refusal, Session, SessionEnd, Sessions};

#[cfg(test)]
mod tests;

/// What a session is to its transaction.
#[derive(Debug)]
pub(super) enum Role {
    /// It began the transaction, and commits it.
    Manager {
        /// Those that have joined and not finished.
        open: HashSet<String>,
        /// What those have written that have finished.
        given_bytes: usize,
        /// One has ended without finishing.
        is_lost: bool,
    },
    /// It has joined this session.
    Participant(String),
    /// It has joined a session of another proxy.
    Remote {
        /// What it has written is on its way there, or was: it can't be changed any more.
        is_sealed: bool,
    },
}

impl Default for Role {
    fn default() -> Self {
        Self::Manager {
            open: HashSet::new(),
            given_bytes: 0,
            is_lost: false,
        }
    }
}

impl Role {
    pub(super) fn given_bytes(&self) -> usize {
        match self {
            Self::Manager { given_bytes, .. } => *given_bytes,
            Self::Participant(_) | Self::Remote { .. } => 0,
        }
    }

    pub(super) fn is_sealed(&self) -> bool {
        matches!(self, Self::Remote { is_sealed: true })
    }

    /// How a session with this role has ended, that was ended so: what was sealed may have been handed over.
    pub(super) fn ended_by(&self, end: SessionEnd) -> SessionEnd {
        let is_known = matches!(
            end,
            SessionEnd::Finished | SessionEnd::ManagerGone | SessionEnd::Aborted
        );
        if self.is_sealed() && !is_known && !mutants::on(SessionMutant::SealedIsRolledBack) {
            SessionEnd::HandOverUnknown
        } else {
            end
        }
    }

    /// Whether a session with this role may commit. It may not later, if a participant is missing now.
    pub(super) fn check_commit(&mut self) -> Result<(), Refusal> {
        match self {
            Self::Manager { open, .. }
                if open.is_empty() || mutants::on(SessionMutant::CommitWithoutAll) =>
            {
                Ok(())
            }
            Self::Manager { is_lost, .. } => {
                *is_lost = true;
                Err(Refusal::Ended(SessionEnd::ParticipantLost))
            }
            Self::Participant(_) | Self::Remote { .. } => Err(Refusal::IsParticipant),
        }
    }
}

/// What a participant's end has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum FinishStep<T> {
    /// Hand over what it has written, with [`Sessions::give`] or, at another proxy, by a call of that.
    Begin {
        /// The participant's.
        txn: T,
        /// It was sealed before: the same is to be sent once more.
        is_sealed: bool,
    },
    /// It was done before.
    Done,
}

impl<T: Clone> Sessions<T> {
    /// Makes room for a participant, which [`Self::joined`] or [`Self::not_begun`] has to follow. The manager's transaction.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn join(&mut self, now: Duration, client: IpAddr, manager: &str) -> Result<T, Refusal> {
        let txn = self.joinable(now, manager)?.txn.clone();
        self.begin(client)?;
        Ok(txn)
    }

    /// The participant is open. If it is refused, its transaction is to be rolled back.
    ///
    /// # Errors
    /// [`Refusal`]: the manager's session has ended meanwhile.
    pub fn joined(
        &mut self,
        now: Duration,
        client: IpAddr,
        manager: &str,
        token: String,
        txn: T,
    ) -> Result<(), Refusal> {
        let role = match self.joinable(now, manager) {
            Ok(joined) => &mut joined.role,
            Err(refusal) => {
                if !mutants::on(SessionMutant::PlaceKept) {
                    self.not_begun(client);
                }
                return Err(refusal);
            }
        };
        if let Role::Manager { open, .. } = role {
            open.insert(token.clone());
        }
        let role = Role::Participant(manager.to_owned());
        let session = Session::new(now, client, txn, role);
        self.open.insert(token, session);
        Ok(())
    }

    /// A participant of another proxy's session is open; [`Self::begin`] has made room for it.
    pub fn joined_elsewhere(&mut self, now: Duration, client: IpAddr, token: String, txn: T) {
        let role = Role::Remote { is_sealed: false };
        let session = Session::new(now, client, txn, role);
        self.open.insert(token, session);
    }

    fn joinable(&mut self, now: Duration, manager: &str) -> Result<&mut Session<T>, Refusal> {
        if mutants::on(SessionMutant::JoinAfterCommit) {
            return self.open.get_mut(manager).ok_or(Refusal::Unknown);
        }
        match self.usable(now, manager) {
            Ok(session) if !matches!(session.role, Role::Manager { .. }) => {
                Err(Refusal::IsParticipant)
            }
            Err(Refusal::Committing | Refusal::Ended(SessionEnd::Committed(_))) => {
                Err(Refusal::TooLate)
            }
            other => other,
        }
    }

    /// A participant is about to finish: no other call begins. [`Self::give`], [`Self::finish`] or [`Self::commit_not_begun`] has to
    /// follow, at another proxy's [`Self::seal`] before.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn finishing(&mut self, now: Duration, token: &str) -> Result<FinishStep<T>, Refusal> {
        if let Some(session) = self.open.get_mut(token)
            && session.role.is_sealed()
            && !session.committing
        {
            session.committing = true;
            let txn = session.txn.clone();
            return Ok(FinishStep::Begin {
                txn,
                is_sealed: true,
            });
        }
        match self.usable(now, token) {
            Ok(session) => {
                if matches!(session.role, Role::Manager { .. }) {
                    return Err(Refusal::NoParticipant);
                }
                session.committing = true;
                Ok(FinishStep::Begin {
                    txn: session.txn.clone(),
                    is_sealed: false,
                })
            }
            Err(Refusal::Ended(SessionEnd::Finished)) => Ok(FinishStep::Done),
            Err(refusal) => Err(refusal),
        }
    }

    /// What a participant of another proxy's session has written is about to be sent there: from now on it may be there, with or
    /// without a response.
    pub fn seal(&mut self, token: &str) {
        if let Some(session) = self.open.get_mut(token)
            && let Role::Remote { is_sealed } = &mut session.role
        {
            *is_sealed = true;
        }
    }

    /// Ends a participant, which has finished: its writes are the manager's from now on, whose transaction is returned.
    ///
    /// # Errors
    /// [`Refusal`]: the participant is as it was.
    pub fn give(&mut self, now: Duration, token: &str) -> Result<T, Refusal> {
        let session = self.open.get(token).ok_or_else(|| self.gone(token))?;
        let Role::Participant(name) = &session.role else {
            return Err(Refusal::NoParticipant);
        };
        let (bytes, name, most) = (session.bytes, name.clone(), self.limits.session_bytes_max);
        let to_commit = mutants::on(SessionMutant::GivenToCommit);
        let manager = if to_commit {
            self.open.get_mut(&name).ok_or(Refusal::Unknown)
        } else {
            self.usable(now, &name)
        };
        let manager = match manager {
            Ok(manager) => manager,
            Err(_) => return Err(Refusal::Ended(SessionEnd::ManagerGone)),
        };
        if manager.bytes.saturating_add(bytes) > most {
            return Err(Refusal::SessionBytes(most));
        }
        manager.bytes += bytes;
        manager.used = now;
        let (txn, client) = (manager.txn.clone(), manager.client);
        if let Role::Manager {
            open, given_bytes, ..
        } = &mut manager.role
        {
            open.remove(token);
            *given_bytes += bytes;
        }
        // What it held is counted for the manager.
        self.bytes.add(client, bytes);
        self.finish(now, token, SessionEnd::Finished);
        Ok(txn)
    }

    /// A call of a participant is a sign of life of the transaction.
    pub(super) fn touch_manager(&mut self, now: Duration, token: &str) {
        let session = self.open.get(token);
        let Some(Role::Participant(manager)) = session.map(|session| &session.role) else {
            return;
        };
        let manager = manager.clone();
        if mutants::on(SessionMutant::ExpiredComesBack) {
            if let Some(manager) = self.open.get_mut(&manager) {
                manager.used = now;
            }
            return;
        }
        // One whose time is over has been answered so, perhaps.
        if let Ok(manager) = self.usable(now, &manager) {
            manager.used = now;
        }
    }

    /// A session with this role has ended, and has not finished.
    pub(super) fn participant_lost(&mut self, role: &Role) {
        if let Role::Participant(manager) = role
            && !mutants::on(SessionMutant::LossForgotten)
            && let Some(manager) = self.open.get_mut(manager)
            && let Role::Manager { is_lost, .. } = &mut manager.role
        {
            *is_lost = true;
        }
    }

    /// The reason why a session can't go on, if so.
    pub(super) fn over(&self, session: &Session<T>, now: Duration) -> Option<SessionEnd> {
        let expired = session.expired(&self.limits, now);
        if let Some(expiry) = expired {
            return Some(SessionEnd::Expired(expiry));
        }
        match &session.role {
            Role::Manager { is_lost: true, .. } => Some(SessionEnd::ParticipantLost),
            Role::Participant(_) if mutants::on(SessionMutant::ManagerGoneUnnoticed) => None,
            Role::Participant(manager) if !self.open.contains_key(manager) => {
                Some(SessionEnd::ManagerGone)
            }
            _ => None,
        }
    }
}
