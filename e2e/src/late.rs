//! Operators that hear of everything some seconds late, by their test-only switch: what holds for a prompt one holds for
//! them, too.

use crate::{Kube, Namespace, OPERATOR, RELEASE, TIMEOUT, kubectl, wait};

/// The namespace and the name of a late operator's release, beside a prompt one's.
pub const LATE: &str = "percolator-late";

/// Of a release of the chart.
fn deployment(release: &str) -> String {
    format!("deployment/{release}-percolator-operator")
}

/// Has a release's operator hear of everything three seconds late, from now on.
fn make_late(release: &str, namespace: &str) -> Result<(), String> {
    let (deployment, of) = (deployment(release), ["-n", namespace]);
    let ask = |arguments: &[&str]| kubectl(&[&of, arguments].concat());
    let switch = "PERCOLATOR_OPERATOR_TEST_WATCH_DELAY=3";
    ask(&["set", "env", &deployment, switch])?;
    ask(&["rollout", "status", &deployment, TIMEOUT])?;
    wait("the switch", || {
        // Its first word: others may come behind it by the minute.
        let log = ask(&["logs", &deployment, "--tail=-1"])?;
        match log.contains("watches tell of changes late") {
            true => Ok(()),
            false => Err(log),
        }
    });
    Ok(())
}

/// The operator of all namespaces, as long as it hears of everything late; it goes away with the value.
#[derive(Debug)]
pub struct LateOperator<'a>(&'a Kube);

impl<'a> LateOperator<'a> {
    /// In the place of a prompt one.
    pub fn begin(kube: &'a Kube) -> Self {
        kube.install(&[]);
        let late = Self(kube);
        make_late(RELEASE, OPERATOR).expect("the switch");
        late
    }
}

impl Drop for LateOperator<'_> {
    fn drop(&mut self) {
        // What was changed here isn't the chart's: the next test installs it anew.
        uninstall(self.0, RELEASE, OPERATOR);
    }
}

fn uninstall(kube: &Kube, release: &str, namespace: &str) {
    let _ = kube.helm(&["uninstall", release, "-n", namespace, "--wait"]);
}

/// Namespaces with a prompt operator, and as many with one that hears of everything late: what is done in the ones is to be
/// done in the others. They go away with the value.
#[derive(Debug)]
pub struct PromptAndLate<'a, const N: usize> {
    sides: [[Namespace; N]; 2],
    /// Goes after them: should a test fail, they tell what it has said.
    _late: LateRelease<'a>,
}

/// The late operator's release; it goes away with the value.
#[derive(Debug)]
struct LateRelease<'a>(&'a Kube);

impl Drop for LateRelease<'_> {
    fn drop(&mut self) {
        uninstall(self.0, LATE, LATE);
    }
}

/// Does the same with both, at a time.
pub fn side_by_side<T: Send, R: Send>(both: [T; 2], act: impl Fn(T) -> R + Sync) -> [R; 2] {
    let act = &act;
    std::thread::scope(|threads| {
        let acting = both.map(|one| threads.spawn(move || act(one)));
        acting.map(|thread| match thread.join() {
            Ok(result) => result,
            // As if it were this thread's.
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

impl<'a, const N: usize> PromptAndLate<'a, N> {
    /// With these values of both charts. The prompt operator's stays, as it is installed by every test.
    pub fn begin(kube: &'a Kube, names: [&str; N], more: &[&str]) -> Self {
        let names = [
            names.map(str::to_owned),
            names.map(|name| format!("{name}-late")),
        ];
        let made = |names: &[String; N]| names.each_ref().map(|name| kube.namespace(name));
        let both = Self {
            sides: names.each_ref().map(made),
            _late: LateRelease(kube),
        };
        let [prompt, late] = &names;
        let releases = [(RELEASE, OPERATOR, prompt), (LATE, LATE, late)];
        side_by_side(releases, |(release, namespace, names)| {
            let namespaces = format!("namespaces={{{}}}", names.join(","));
            let values = [&["--set", &namespaces], more].concat();
            kube.install_release(release, namespace, &values);
        });
        make_late(LATE, LATE).expect("the switch");
        both
    }

    /// Those of the prompt operator, and those of the other.
    pub fn sides(&self) -> &[[Namespace; N]; 2] {
        &self.sides
    }

    /// Those of the prompt operator alone: all else goes.
    pub fn into_prompt(self) -> [Namespace; N] {
        let [prompt, _] = self.sides;
        prompt
    }
}
