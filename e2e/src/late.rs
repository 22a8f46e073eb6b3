//! Operators with delayed watches, by their test-only switch: what holds for a prompt operator holds for them, too.

use crate::{Kube, Namespace, OPERATOR, RELEASE, TIMEOUT, kubectl, wait};

/// The namespace and the name of a late operator's release, beside a prompt one's.
pub const LATE: &str = "percolator-late";

/// A release whose operator's watches are three seconds late; it goes away with the value.
#[derive(Debug)]
pub struct LateOperator<'a> {
    kube: &'a Kube,
    release: &'static str,
    namespace: &'static str,
}

impl<'a> LateOperator<'a> {
    /// That of all namespaces, in the place of a prompt one.
    pub fn begin(kube: &'a Kube) -> Self {
        kube.install(&[]);
        let late = Self {
            kube,
            release: RELEASE,
            namespace: OPERATOR,
        };
        late.switch_on();
        late
    }

    /// Once it is installed.
    fn switch_on(&self) {
        let deployment = format!("deployment/{}-percolator-operator", self.release);
        let ask = |arguments: &[&str]| kubectl(&[&["-n", self.namespace], arguments].concat());
        let switch = "PERCOLATOR_OPERATOR_TEST_WATCH_DELAY=3";
        ask(&["set", "env", &deployment, switch]).expect("the switch");
        ask(&["rollout", "status", &deployment, TIMEOUT]).expect("an operator with the switch");
        wait("the switch", || {
            // Its first word: others may come behind it by the minute.
            let log = ask(&["logs", &deployment, "--tail=-1"])?;
            if log.contains("watches delay their events") {
                Ok(())
            } else {
                Err(log)
            }
        });
    }
}

impl Drop for LateOperator<'_> {
    fn drop(&mut self) {
        // What was changed here isn't the chart's: the next test installs it anew.
        let uninstall = ["uninstall", self.release, "-n", self.namespace, "--wait"];
        let _ = self.kube.helm(&uninstall);
    }
}

/// Whether these tests run for hours.
fn has_time() -> bool {
    std::env::var_os("PERCOLATOR_E2E_LONG").is_some()
}

/// Namespaces with a prompt operator, and as many with one whose watches are late: what is done in the ones is to be
/// done in the others. They go away with the value.
#[derive(Debug)]
pub struct PromptAndLate<'a, const N: usize> {
    sides: [[Namespace; N]; 2],
    /// Dropped after them: if a test fails, they print its log.
    late: LateOperator<'a>,
}

/// Does the same with each side, at a time.
pub fn side_by_side<T: Send, R: Send>(
    sides: impl IntoIterator<Item = T>,
    act: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let act = &act;
    std::thread::scope(|threads| {
        let acting = sides
            .into_iter()
            .map(|side| threads.spawn(move || act(side)));
        let acting: Vec<_> = acting.collect();
        let results = acting.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            // As if it were this thread's.
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect()
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
            late: LateOperator {
                kube,
                release: LATE,
                namespace: LATE,
            },
        };
        let [prompt, late] = names.map(|names| format!("namespaces={{{}}}", names.join(",")));
        let with = |namespaces| [&["--set", namespaces], more].concat();
        std::thread::scope(|threads| {
            threads.spawn(|| kube.install(&with(&prompt)));
            kube.upgrade(LATE, LATE, &with(&late));
            both.late.switch_on();
        });
        both
    }

    /// Those of the prompt operator, and those of the other.
    pub fn sides(&self) -> &[[Namespace; N]; 2] {
        &self.sides
    }

    /// Those of the prompt operator, and where there is time those of the other too: what holds for one holds for both, as a rule.
    pub fn prompt_at_least(&self) -> &[[Namespace; N]] {
        let [prompt, _] = &self.sides;
        self.at_least(prompt)
    }

    /// Those of the late operator, and where there is time those of the other too.
    pub fn late_at_least(&self) -> &[[Namespace; N]] {
        let [_, late] = &self.sides;
        self.at_least(late)
    }

    fn at_least<'s>(&'s self, side: &'s [Namespace; N]) -> &'s [[Namespace; N]] {
        if has_time() {
            &self.sides
        } else {
            std::slice::from_ref(side)
        }
    }

    /// Those of the prompt operator alone: all else goes.
    pub fn into_prompt(self) -> [Namespace; N] {
        let [prompt, _] = self.sides;
        prompt
    }
}
