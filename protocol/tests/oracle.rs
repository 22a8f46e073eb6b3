//! Any clocks, any failures, a crash anywhere: timestamps strictly increase and none comes twice.

use percolator_protocol::oracle::{Now, Oracle, Settings};
use percolator_protocol::types::Timestamp;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Both clocks move by `mono_ms`, and the wall clock by `wall_ms` besides.
    Pass { mono_ms: u64, wall_ms: i64 },
    /// A request comes.
    Grant { count: u32 },
    /// A limit is sent to the disk, if one is due.
    Extend,
    /// The disk has what was sent.
    Durable,
    /// The disk fails; what was sent landed or not.
    Fail { landed: bool },
    /// The process dies and starts again; what was sent landed or not.
    Crash { landed: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let wall_ms = prop_oneof![
        4 => Just(0),
        2 => -20_000..20_000_i64,
        1 => -10_000_000_000..10_000_000_000_i64,
    ];
    let count = prop_oneof![1..10_u32, 1..65_537_u32, 1..u32::MAX];
    prop_oneof![
        4 => (0..4_000_u64, wall_ms).prop_map(|(mono_ms, wall_ms)| Step::Pass { mono_ms, wall_ms }),
        6 => count.prop_map(|count| Step::Grant { count }),
        4 => Just(Step::Extend),
        4 => Just(Step::Durable),
        1 => any::<bool>().prop_map(|landed| Step::Fail { landed }),
        1 => any::<bool>().prop_map(|landed| Step::Crash { landed }),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    (0..5_000_u64, 0..20_000_u64).prop_map(|(window_ms, jump_ms_max)| Settings {
        window_ms,
        jump_ms_max,
        stopped_ms_max: u64::MAX,
    })
}

/// The oracle, the disk under it, and who watches both.
struct World {
    settings: Settings,
    now: Now,
    oracle: Oracle,
    sent: Option<Timestamp>,
    disk: Option<Timestamp>,
    last: Timestamp,
}

impl World {
    fn new(settings: Settings) -> Self {
        let now = Now {
            unix_ms: 1_700_000_000_000,
            mono_ms: 0,
        };
        Self {
            settings,
            now,
            oracle: Oracle::recover(None, now, settings).unwrap(),
            sent: None,
            disk: None,
            last: Timestamp::ZERO,
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Pass { mono_ms, wall_ms } => {
                self.now.mono_ms += mono_ms;
                let wall = self.now.unix_ms.saturating_add(mono_ms);
                self.now.unix_ms = wall.saturating_add_signed(wall_ms);
            }
            Step::Grant { count } => {
                self.oracle.observe(self.now);
                if let Some(granted) = self.oracle.grant(count) {
                    assert!(granted.first > self.last, "{granted:?} after {}", self.last);
                    assert!((1..=count).contains(&granted.count));
                    let last = granted.first.as_u64() + u64::from(granted.count) - 1;
                    self.last = Timestamp::from_u64(last);
                    assert!(self.disk.is_some_and(|limit| self.last < limit));
                }
            }
            Step::Extend => {
                self.oracle.observe(self.now);
                if let Some(limit) = self.oracle.extend() {
                    assert!(self.sent.is_none());
                    self.sent = Some(limit);
                }
            }
            Step::Durable => {
                if let Some(limit) = self.sent.take() {
                    self.disk = Some(limit);
                    self.oracle.observe(self.now);
                    self.oracle.limit_durable(limit);
                }
            }
            Step::Fail { landed } => {
                if self.sent.is_some() {
                    self.land(landed);
                    self.oracle.limit_failed();
                }
            }
            Step::Crash { landed } => {
                self.land(landed);
                self.now.mono_ms = 0;
                self.oracle = Oracle::recover(self.disk, self.now, self.settings).unwrap();
            }
        }
    }

    fn land(&mut self, landed: bool) {
        if let Some(limit) = self.sent.take()
            && landed
        {
            self.disk = Some(limit);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(1_000)
    })]

    #[test]
    fn timestamps_strictly_increase(
        settings in settings(),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new(settings);
        for step in steps {
            world.apply(step);
        }
        // And it is alive: with a disk that works, however slow, something is granted.
        let slow = Step::Pass { mono_ms: 60_000, wall_ms: 0 };
        for step in [Step::Durable, Step::Extend, slow, Step::Durable] {
            world.apply(step);
        }
        let before = world.last;
        world.apply(Step::Grant { count: 1 });
        if world.last == before {
            // None was due before the time passed.
            world.apply(Step::Extend);
            world.apply(Step::Durable);
        }
        world.apply(Step::Grant { count: 1 });
        prop_assert!(world.last > before);
    }
}
