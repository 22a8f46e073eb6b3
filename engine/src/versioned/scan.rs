//! A scan in chunks: the gate is held for one chunk at a time.

use std::collections::{BTreeMap, VecDeque};

use super::Shared;
use crate::{
    Column, Direction, Error, Key, Value,
    backend::Store,
    read::{is_empty_range, successor},
};

const FIRST_CHUNK_PAIRS: usize = 16;
const CHUNK_PAIRS: usize = 512;

/// The pairs of a scan, of the store as it is now or as it was at a version.
pub(super) struct Chunks<'a, S> {
    shared: &'a Shared<S>,
    version: Option<u64>,
    column: Column,
    /// The rest to scan is `[start, end)`.
    start: Key,
    end: Key,
    direction: Direction,
    pairs: usize,
    ready: VecDeque<(Key, Value)>,
    done: bool,
}

impl<'a, S: Store> Chunks<'a, S> {
    pub(super) fn new(
        shared: &'a Shared<S>,
        version: Option<u64>,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Chunks<'a, S> {
        Chunks {
            shared,
            version,
            column,
            start: Key::copy_from_slice(start),
            end: Key::copy_from_slice(end),
            direction,
            pairs: FIRST_CHUNK_PAIRS,
            ready: VecDeque::new(),
            done: is_empty_range(start, end),
        }
    }

    /// Starts with a chunk of `pairs`.
    pub(super) fn of_pairs(mut self, pairs: usize) -> Chunks<'a, S> {
        self.pairs = pairs;
        self
    }

    fn fill(&mut self) -> Result<(), Error> {
        let mut found = Vec::with_capacity(self.pairs);
        let history = self.shared.gate.read();
        history.check_readable(self.version)?;
        self.done = self.shared.store.chunk(
            self.column,
            &self.start,
            &self.end,
            self.direction,
            self.pairs,
            &mut found,
        )?;
        self.pairs = (self.pairs * 4).min(CHUNK_PAIRS);
        // What this chunk covers, and what is left after it.
        let (mut start, mut end) = (self.start.clone(), self.end.clone());
        match found.last() {
            Some((last, _)) if !self.done => match self.direction {
                Direction::Forward => {
                    end = successor(last);
                    self.start = end.clone();
                }
                Direction::Reverse => {
                    start = last.clone();
                    self.end = start.clone();
                }
            },
            _ => self.done = true,
        }
        if let Some(version) = self.version {
            let mut changed = history
                .changed(version, self.column, &start, &end)
                .peekable();
            if changed.peek().is_some() {
                let mut pairs: BTreeMap<Key, Value> = found.drain(..).collect();
                for (key, value) in changed {
                    match value {
                        Some(value) => pairs.insert(key.clone(), value.clone()),
                        None => pairs.remove(key),
                    };
                }
                match self.direction {
                    Direction::Forward => found.extend(pairs),
                    Direction::Reverse => found.extend(pairs.into_iter().rev()),
                }
            }
        }
        self.ready = found.into();
        Ok(())
    }
}

impl<S: Store> Iterator for Chunks<'_, S> {
    type Item = Result<(Key, Value), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.ready.pop_front() {
                return Some(Ok(pair));
            }
            if self.done {
                return None;
            }
            if let Err(error) = self.fill() {
                self.done = true;
                return Some(Err(error));
            }
        }
    }
}
