//! Mutants of the election: which of them whole clusters kill, and under what faults.

use percolator_protocol::election::mutants::ElectionMutant;

use crate::plan::Fault;

/// Mutants of promises that whole clusters kill within a thousand seeds. The others need a replica that starts again, or a swap that is
/// undecided, at just one moment of a takeover: the model of the election goes through all of these, and kills them.
#[cfg(feature = "mutants")]
pub(crate) const OF_PROMISES: [ElectionMutant; 6] = [
    ElectionMutant::SomePromises,
    ElectionMutant::LimitInOneFolder,
    ElectionMutant::OwnFolderIgnored,
    ElectionMutant::PromiseBroken,
    ElectionMutant::PromiseFromAnswer,
    ElectionMutant::UnlistedTakesOver,
];

/// Mutants of masters' states that whole clusters kill; the model kills the others as well.
#[cfg(feature = "mutants")]
pub(crate) const OF_STATES: [ElectionMutant; 4] = [
    ElectionMutant::StateInOneFolder,
    ElectionMutant::ListChangesWhileAhead,
    ElectionMutant::HandOverWhileAhead,
    ElectionMutant::OwnCopyIgnored,
];

/// What has to fail for a mutant of the election to show.
pub(crate) fn faults_for(mutant: ElectionMutant) -> &'static [Fault] {
    use ElectionMutant as E;
    match mutant {
        E::HandOverBelowNext | E::GrantsDuringHandOver => &[Fault::HandOver, Fault::RegisterSlow],
        E::RightFromAnswer => &[Fault::RegisterSlow],
        E::SeenFromSending => &[Fault::RegisterSlow, Fault::CutLeader],
        // Standbys promise again that were away while the leader's states were in folders alone.
        E::ListChangesWhileAhead => &[
            Fault::Loss,
            Fault::RegisterAway,
            Fault::KillLeader,
            Fault::KillServer,
            Fault::PauseServer,
        ],
        // A replica has to be away when the others promise.
        E::UnlistedTakesOver => &[
            Fault::KillServer,
            Fault::KillLeader,
            Fault::PauseLeader,
            Fault::CutLeader,
            Fault::RegisterAway,
            Fault::RegisterSlow,
        ],
        _ if mutant.is_of_states() => &[
            Fault::Loss,
            Fault::RegisterAway,
            Fault::HandOver,
            Fault::KillLeader,
        ],
        _ if mutant.is_of_promises() => &[
            Fault::ClockJump,
            Fault::KillLeader,
            Fault::PauseLeader,
            Fault::CutLeader,
            Fault::RegisterSlow,
        ],
        _ => &[
            Fault::HandOver,
            Fault::KillLeader,
            Fault::PauseLeader,
            Fault::CutLeader,
            Fault::RegisterSlow,
        ],
    }
}
