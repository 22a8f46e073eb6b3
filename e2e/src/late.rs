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
        let log = ask(&["logs", &deployment, "--tail=20"])?;
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

/// Two namespaces with an operator each: a prompt one, and one that hears of everything late. What is done in one is to be
/// done in the other. They go away with the value.
#[derive(Debug)]
pub struct PromptAndLate<'a> {
    kube: &'a Kube,
    spaces: [Namespace; 2],
}

impl<'a> PromptAndLate<'a> {
    /// With these values of both charts.
    pub fn begin(kube: &'a Kube, name: &str, more: &[&str]) -> Self {
        let names = [name.to_owned(), format!("{name}-late")];
        let both = Self {
            kube,
            spaces: names.each_ref().map(|name| kube.namespace(name)),
        };
        for (name, (release, namespace)) in names.iter().zip([(RELEASE, OPERATOR), (LATE, LATE)]) {
            let namespaces = format!("namespaces={{{name}}}");
            let values = [&["--set", &namespaces], more].concat();
            kube.install_release(release, namespace, &values);
        }
        make_late(LATE, LATE).expect("the switch");
        both
    }

    /// The one with the prompt operator, and the other.
    pub fn spaces(&self) -> [&Namespace; 2] {
        self.spaces.each_ref()
    }
}

impl Drop for PromptAndLate<'_> {
    fn drop(&mut self) {
        uninstall(self.kube, LATE, LATE);
    }
}
