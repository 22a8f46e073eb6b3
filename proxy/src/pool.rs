//! What clients share: of each thing that a proxy has a bounded number of, no client gets more than is left for the others.
//!
//! So a client alone gets half of it, and the next one half of the rest: what some take leaves something for others. A client is
//! an address: whatever is behind it counts as one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// A bounded number of something.
#[derive(Debug)]
pub(crate) struct Pool {
    most: usize,
    taken: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// The reason why a client gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// There isn't as much left: so much there is in all.
    All(usize),
    /// This client would have more than is left for others.
    Share {
        /// The client.
        client: IpAddr,
        /// What it has.
        has: usize,
        /// What there is in all.
        most: usize,
    },
}

impl Full {
    /// What there is in all.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::All(most) | Self::Share { most, .. } => most,
        }
    }
}

impl Pool {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            taken: 0,
            by_client: HashMap::new(),
        }
    }

    /// What is taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Whether the client may take so much.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn check(&self, client: IpAddr, amount: usize) -> Result<(), Full> {
        let left = self.most.saturating_sub(self.taken);
        let has = self.by_client.get(&client).copied().unwrap_or_default();
        if amount > left {
            Err(Full::All(self.most))
        } else if has.saturating_add(amount) > left {
            Err(Full::Share {
                client,
                has,
                most: self.most,
            })
        } else {
            Ok(())
        }
    }

    /// The client takes so much, which [`Self::give_back`] has to follow.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn take(&mut self, client: IpAddr, amount: usize) -> Result<(), Full> {
        self.check(client, amount)?;
        self.add(client, amount);
        Ok(())
    }

    /// The client has so much more, whatever is left.
    pub(crate) fn add(&mut self, client: IpAddr, amount: usize) {
        if amount > 0 {
            self.taken += amount;
            *self.by_client.entry(client).or_default() += amount;
        }
    }

    /// The client has so much less.
    pub(crate) fn give_back(&mut self, client: IpAddr, amount: usize) {
        self.taken = self.taken.saturating_sub(amount);
        if let Some(has) = self.by_client.get_mut(&client) {
            *has = has.saturating_sub(amount);
            if *has == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

/// A pool that tasks share.
#[derive(Clone, Debug)]
pub(crate) struct SharedPool(Arc<Mutex<Pool>>);

/// What a client has taken of a pool. Dropping it gives that back.
#[derive(Debug)]
pub(crate) struct PoolPermit {
    pool: SharedPool,
    client: IpAddr,
    amount: usize,
}

impl SharedPool {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Pool::new(most))))
    }

    /// The client takes so much.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn take(&self, client: IpAddr, amount: usize) -> Result<PoolPermit, Full> {
        self.0.lock().take(client, amount)?;
        Ok(PoolPermit {
            pool: self.clone(),
            client,
            amount,
        })
    }
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        self.pool.0.lock().give_back(self.client, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    /// Takes one at a time until it is refused.
    fn take_all(pool: &mut Pool, client: IpAddr) -> Full {
        loop {
            if let Err(full) = pool.take(client, 1) {
                return full;
            }
        }
    }

    #[test]
    fn a_client_gets_as_much_as_is_left_for_others() {
        let mut pool = Pool::new(12);
        let share = |number, has| Full::Share {
            client: client(number),
            has,
            most: 12,
        };
        assert_eq!(take_all(&mut pool, client(1)), share(1, 6));
        assert_eq!(take_all(&mut pool, client(2)), share(2, 3));
        // However much those have taken, there is one for the next.
        for number in 3..=5 {
            assert_eq!(pool.take(client(number), 1), Ok(()));
        }
        assert_eq!(pool.take(client(6), 1), Err(Full::All(12)));
        assert_eq!(pool.taken(), 12);
    }

    #[test]
    fn what_is_given_back_is_there_again_and_nothing_is_kept_of_who_has_nothing() {
        let mut pool = Pool::new(100);
        pool.take(client(1), 50).unwrap();
        assert_eq!(pool.take(client(2), 51), Err(Full::All(100)));
        pool.give_back(client(1), 20);
        assert_eq!(pool.take(client(2), 35), Ok(()));
        pool.add(client(2), 100);
        assert_eq!(
            pool.check(client(1), 0),
            Err(Full::Share {
                client: client(1),
                has: 30,
                most: 100
            })
        );
        pool.give_back(client(2), 135);
        pool.give_back(client(1), 30);
        assert_eq!((pool.taken(), pool.by_client.len()), (0, 0));
    }
}
