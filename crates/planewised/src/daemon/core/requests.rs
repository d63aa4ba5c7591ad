//! Requests to the core, and its answers.

use pw_alloc::journal::Entry;
use pw_alloc::model::Stance;
use pw_alloc::settings::{PolicyKind, Settings};
use pw_error::{Error, Result};

use super::Core;
use crate::daemon::config::Config;
use crate::daemon::request::{Answer, Envelope, Event, Fault, Refused, Request};
use crate::daemon::status::Planned;

impl Core {
    /// Performs one request and answers it.
    pub fn handle(&mut self, envelope: Envelope, now_ms: u64) {
        if envelope.is_abandoned() {
            return;
        }
        self.now_ms = now_ms;
        let answer = self.answer(&envelope.request);
        self.answered(envelope, answer);
    }

    /// Publishes that a request was performed, and answers it.
    fn answered(&mut self, envelope: Envelope, answer: std::result::Result<Answer, Refused>) {
        if let Ok(answer) = &answer
            && envelope.request != Request::Plan
        {
            self.status.counters.requests += 1;
            let what = match answer {
                Answer::Done(what) => what.clone(),
                Answer::Plan(plan) => format!("{} moves", plan.moves.len()),
            };
            let (request, caller) = (envelope.request.name().into(), envelope.caller.to_string());
            self.ends.emit(Event::Requested { request, caller, what });
        }
        self.publish();
        envelope.answer(answer);
    }

    fn answer(&mut self, request: &Request) -> std::result::Result<Answer, Refused> {
        if let Some(guest) = request.guest()
            && !self.guests.contains_key(guest)
        {
            return Err(Refused::unknown_guest(guest));
        }
        match request {
            Request::Plan => {
                let snapshot = self.snapshot();
                let decision = self.allocator.decide(&snapshot);
                Ok(Answer::Plan(Planned::new(&decision.plan, decision.deferred, false)))
            }
            Request::Stance { guest, stance } => {
                self.wishes.set_stance(guest, *stance)?;
                self.allocator.retry(Some(guest));
                self.decide_now = true;
                let word = match stance {
                    Stance::Pinned => "pinned",
                    Stance::Excluded => "excluded",
                    Stance::Free => "left to the policy",
                };
                Ok(Answer::Done(format!("{guest} is {word}")))
            }
            Request::Policy { policy } => {
                self.wishes.set_policy(*policy)?;
                self.use_policy(*policy)?;
                Ok(Answer::Done(format!("the policy is {}", policy.as_str())))
            }
            Request::Rebalance => {
                if self.is_doubtful() || self.dry_run {
                    return Err(self.not_now());
                }
                self.allocator.retry(None);
                let decision = self.decide();
                // The next tick makes the moves.
                self.decide_now = true;
                Ok(Answer::Plan(Planned::new(&decision.plan, decision.deferred, true)))
            }
            Request::Drain { on } => {
                self.wishes.set_draining(*on)?;
                self.allocator.retry(None);
                self.status.draining = *on;
                self.decide_now = true;
                Ok(Answer::Done(if *on {
                    "every VF goes back to its pool".to_owned()
                } else {
                    "VFs are given again".to_owned()
                }))
            }
            Request::Unmark { .. } if self.dry_run => Err(self.not_now()),
            Request::Unmark { guest } => {
                if !self.journal.ledger().marked.contains_key(guest) {
                    return Err(Refused::new(
                        Fault::Conflict,
                        format!("{guest} is not marked"),
                        "`planewise alloc status` shows who is",
                    ));
                }
                self.journal.append(&Entry::Unmark { guest: guest.clone() })?;
                self.ends.emit(Event::GuestUnmarked { guest: guest.clone() });
                self.allocator.retry(Some(guest));
                // Its VFs are surveyed.
                self.suspect(guest, "was unmarked");
                self.next_sample_ms = 0;
                self.decide_now = true;
                Ok(Answer::Done(format!("{guest} takes part again")))
            }
            Request::Reload => Err(Refused::new(
                Fault::Unavailable,
                "the configuration is not read again here",
                "send SIGHUP to the daemon",
            )),
        }
    }

    fn not_now(&self) -> Refused {
        if self.dry_run {
            return Refused::new(
                Fault::Conflict,
                "this daemon only looks (--dry-run)",
                "start it without --dry-run",
            );
        }
        Refused::new(
            Fault::Unavailable,
            "journal and host are still being compared",
            "try again in a second",
        )
    }

    fn use_policy(&mut self, policy: PolicyKind) -> Result<()> {
        let settings = Settings { policy, ..self.allocator.settings().clone() };
        self.allocator.configure(settings).map_err(|error| error.at("alloc"))?;
        self.status.policy = policy;
        self.decide_now = true;
        Ok(())
    }

    /// Uses another configuration from now on.
    pub fn configure(&mut self, config: Config) -> Result<()> {
        let mut settings = config.alloc.clone();
        settings.policy = self.wishes.policy().unwrap_or(settings.policy);
        self.allocator.configure(settings.clone()).map_err(|error| error.at("alloc"))?;
        self.allocator.retry(None);
        self.status.policy = settings.policy;
        self.status.interval_s = settings.interval_s;
        self.status.sample_s = config.sample_s;
        for kind in &mut self.host.kinds {
            kind.configure(&config);
        }
        self.config = config;
        (self.next_sample_ms, self.decide_now) = (0, true);
        Ok(())
    }

    /// Reports that a configuration was refused; the one in force stays.
    pub fn refuse(&mut self, error: &Error) {
        self.report_error(error, None, None);
    }

    /// Answers a request to read the configuration again.
    pub fn reloaded(&mut self, envelope: Envelope, result: Result<()>, now_ms: u64) {
        self.now_ms = now_ms;
        let answer = result.map(|()| Answer::Done("the configuration was read again".to_owned()));
        self.answered(envelope, answer.map_err(Refused::from));
    }

    /// The configuration in force.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The state in which the daemon leaves the guests when it stops, in a sentence.
    pub fn final_state(&self) -> String {
        let holders = &self.journal.ledger().holders;
        let held: Vec<String> =
            holders.iter().map(|(vf, guest)| format!("{guest} on {vf}")).collect();
        let without_vf = self.guests.len().saturating_sub(holders.len());
        match held.len() {
            0 => format!("{without_vf} guests stay on their paravirtual paths"),
            _ => format!(
                "stay as they are: {}; and {without_vf} guests on their paravirtual paths",
                held.join(", ")
            ),
        }
    }

    /// Emits that the daemon stops.
    pub fn stopping(&mut self) {
        let what = self.final_state();
        self.ends.emit(Event::Stopping { what });
    }
}
