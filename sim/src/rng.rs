//! Randomness of a run: everything comes from its seed. Integers only, so that a seed means the same on
//! every machine.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// A stream of random numbers (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream with this name of a seed: what one stream is asked for doesn't change another.
    pub fn new(seed: u64, stream: &str) -> Self {
        let mut state = seed ^ 0x5851_f42d_4c95_7f2d;
        for byte in stream.bytes() {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let mut rng = Self(state);
        rng.next();
        rng
    }

    /// The stream with this name of this one: neither is changed by what the other is asked for.
    #[must_use]
    pub fn stream(&self, name: &str) -> Self {
        Self::new(self.0, name)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 where that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// A number from `low` up to and without `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low))
    }

    /// True in `ppm` of a million cases.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// One of these.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// A pause of about this length: mostly shorter, now and then several times as long.
    pub fn about(&mut self, mean: Duration) -> Duration {
        let micros = u64::try_from(mean.as_micros()).unwrap_or(u64::MAX / 8);
        let stretch = if self.below(8) == 0 { 4 } else { 1 };
        Duration::from_micros(self.below(micros * 3 / 2 + 1) * stretch)
    }
}

/// Streams of one process, by what they are for.
#[derive(Debug)]
pub struct Dice {
    rng: Rng,
    streams: Mutex<BTreeMap<&'static str, Rng>>,
}

impl Dice {
    /// Those that come of this stream.
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            streams: Mutex::default(),
        }
    }

    /// Asks the stream of this name.
    pub fn of<T>(&self, name: &'static str, ask: impl FnOnce(&mut Rng) -> T) -> T {
        let mut streams = self.streams.lock();
        let stream = streams.entry(name);
        ask(stream.or_insert_with(|| self.rng.stream(name)))
    }
}
