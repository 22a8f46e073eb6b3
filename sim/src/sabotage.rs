//! Wrong turns, for the proof that they are noticed: those of the shipped rules
//! (`protocol::mutants`, with the feature `mutants` alone), and those of the world around them.

use percolator_protocol::mutants::Mutant;

use crate::plan::{Fault, Plan};

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A rule takes a wrong turn.
    Rule(Mutant),
    /// The oracle's limit is called durable and isn't.
    LimitNotDurable,
    /// A batch comes to the disk in pieces.
    TornBatch,
    /// A group is answered before it is synced.
    AnswerBeforeSync,
    /// Every tablet has two owners.
    TwoOwners,
}

impl Sabotage {
    /// All that there is in this build.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::LimitNotDurable,
            Self::TornBatch,
            Self::AnswerBeforeSync,
            Self::TwoOwners,
        ];
        if cfg!(feature = "mutants") {
            all.extend(Mutant::ALL.map(Self::Rule));
        }
        all
    }

    /// The plan of a seed with this wrong turn. Those that only show where certain things fail together
    /// get nothing but those: with all kinds drawn at random it would take hundreds of seeds.
    pub fn plan(self, seed: u64) -> Plan {
        let needs: &[Fault] = match self {
            Self::Rule(Mutant::GrantBeforeDurable) | Self::LimitNotDurable => {
                &[Fault::KillServer, Fault::DiskSlow, Fault::ClockJump]
            }
            Self::Rule(Mutant::OnePhaseOfAnotherLife) => &[Fault::KillServer, Fault::Late],
            _ => &[],
        };
        let mut plan = Plan::new(seed);
        if !needs.is_empty() {
            plan.faults = needs.iter().copied().collect();
        }
        plan.sabotage = Some(self);
        plan
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Rule(mutant) => format!("{mutant:?}"),
            other => format!("{other:?}"),
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|one| one.name() == name)
    }
}

/// From now on this thread takes this wrong turn, or none.
pub fn begin(sabotage: Option<Sabotage>) {
    #[cfg(feature = "mutants")]
    percolator_protocol::mutants::set(match sabotage {
        Some(Sabotage::Rule(mutant)) => Some(mutant),
        _ => None,
    });
    #[cfg(not(feature = "mutants"))]
    let _ = sabotage;
}
