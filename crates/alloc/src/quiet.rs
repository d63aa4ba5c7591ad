//! Detects in one pass over the guests that a decision changes nothing, as most do not.
//! Says *nothing changes* only where the whole decision would have no move; where constraints are at
//! work it does not try to tell.

use crate::history::{Histories, History};
use crate::model::{GuestView, Health, Snapshot, Stance, VfState};
use crate::policy::{self, Standing};
use crate::settings::{PolicyKind, Settings};

/// Is it certain that there is nothing to do?
pub fn nothing_changes(now: &Snapshot, settings: &Settings, histories: &Histories) -> bool {
    if !now.vfs.iter().all(|vf| vf.state == VfState::Usable) {
        return false;
    }
    let mut held = 0;
    for guest in &now.guests {
        if !unconstrained(guest) {
            return false;
        }
        held += usize::from(guest.holds.is_some());
    }
    if held != now.vfs.len() && held != now.guests.len() {
        return false;
    }
    let residency_ms = (settings.min_residency_s * 1e3) as u64;
    let moved_lately = |history: &History| {
        history.changed_ms.is_some_and(|changed| now.now_ms.saturating_sub(changed) < residency_ms)
    };
    // The holder that would be challenged: the last-ranked one that may lose its VF.
    let mut worst: Option<Standing> = None;
    for (place, guest) in now.guests.iter().enumerate().filter(|(_, guest)| guest.holds.is_some()) {
        let Some(history) = histories.at(place, &guest.id) else { return false };
        if moved_lately(history) {
            continue;
        }
        let standing = policy::standing(guest, &history.past, settings);
        if worst.is_none_or(|worst| standing.compare(&worst).is_lt()) {
            worst = Some(standing);
        }
    }
    for (place, guest) in now.guests.iter().enumerate().filter(|(_, guest)| guest.holds.is_none()) {
        let Some(history) = histories.at(place, &guest.id) else { return false };
        if history.undone > 0 {
            return false;
        }
        if let Some(worst) = &worst
            && !moved_lately(history)
            // Checked without its traffic: it takes a VF by its class or by having waited.
            && (settings.policy != PolicyKind::Benefit
                || history.past.has_waited()
                || guest.wish.class > worst.class)
        {
            let standing = policy::standing(guest, &history.past, settings);
            if policy::displaces((&standing, &history.past), worst, settings) {
                return false;
            }
        }
    }
    true
}

/// May it hold any VF, and lose it to any guest that ranks higher?
fn unconstrained(guest: &GuestView) -> bool {
    let wish = &guest.wish;
    guest.health == Health::Ready
        && guest.paravirtual_up
        && wish.stance == Stance::Free
        && wish.min_share <= 0.0
        && wish.pfs.is_empty()
}
