//! What the clocks of one process say: a wall clock that may jump, stop, and run fast or slow, and a
//! monotonic one that may run fast or slow.

/// Milliseconds since the Unix epoch when a run begins.
pub const EPOCH_MS: u64 = 1_700_000_000_000;

/// The pace of a clock that is right, in thousandths.
const RIGHT: u64 = 1_000;

/// The clocks of one process.
#[derive(Clone, Debug)]
pub struct Clock {
    /// When the pace was last changed: by the world's time, and what the clocks said, in microseconds.
    changed_us: u64,
    mono_us: u64,
    wall_us: u64,
    /// Of a second of the clock, how many milliseconds pass in one of the world.
    pace: u64,
    wall_stopped: bool,
    /// The pace was another one than the right one, at some time or other.
    was_paced: bool,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            changed_us: 0,
            mono_us: 0,
            wall_us: EPOCH_MS * 1_000,
            pace: RIGHT,
            wall_stopped: false,
            was_paced: false,
        }
    }
}

impl Clock {
    /// What the monotonic clock says at this time of the world, in microseconds.
    pub fn mono_us(&self, now_us: u64) -> u64 {
        self.mono_us + self.passed_us(now_us)
    }

    /// What the wall clock says, in microseconds since the Unix epoch.
    pub fn wall_us(&self, now_us: u64) -> u64 {
        if self.wall_stopped {
            self.wall_us
        } else {
            self.wall_us + self.passed_us(now_us)
        }
    }

    /// How much of the world's time passes while this clock counts so much, rounded up: who sleeps until a time doesn't wake up before
    /// it again and again.
    pub fn world_us(&self, own_us: u64) -> u64 {
        (own_us * RIGHT).div_ceil(self.pace.max(1))
    }

    /// From now on the clocks go at this pace, in thousandths of the right one.
    pub fn set_pace(&mut self, now_us: u64, pace: u64) {
        self.settle(now_us);
        self.pace = pace;
        self.was_paced |= pace != RIGHT;
    }

    /// Whether it ever went fast or slow.
    pub fn was_paced(&self) -> bool {
        self.was_paced
    }

    /// The wall clock stands still, or goes on.
    pub fn stop_wall(&mut self, now_us: u64, stopped: bool) {
        self.settle(now_us);
        self.wall_stopped = stopped;
    }

    /// The wall clock jumps by so many milliseconds.
    pub fn jump_wall(&mut self, now_us: u64, by_ms: i64) {
        self.settle(now_us);
        self.wall_us = self.wall_us.saturating_add_signed(by_ms * 1_000);
    }

    /// From now on the clocks go right; the wall clock is set, as by a time server.
    pub fn heal(&mut self, now_us: u64) {
        self.settle(now_us);
        self.pace = RIGHT;
        self.wall_stopped = false;
        self.wall_us = EPOCH_MS * 1_000 + now_us;
    }

    fn passed_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.changed_us) * self.pace / RIGHT
    }

    fn settle(&mut self, now_us: u64) {
        let (mono_us, wall_us) = (self.mono_us(now_us), self.wall_us(now_us));
        (self.mono_us, self.wall_us, self.changed_us) = (mono_us, wall_us, now_us);
    }
}
