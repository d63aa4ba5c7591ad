//! Seats guests on PFs by rank: a guest is seated if any seating of it and all before it exists.

/// One guest that wants a seat.
#[derive(Debug, Clone)]
pub struct Seeker {
    /// PFs that it may sit on, the most welcome first.
    pub pfs: Vec<usize>,
    /// The PF that it sits on already.
    pub home: Option<usize>,
}

/// A seating of guests on PFs.
#[derive(Debug)]
pub struct Seating {
    seekers: Vec<Seeker>,
    seats: Vec<usize>,
    /// Seated guests by PF.
    pub taken: Vec<Vec<usize>>,
}

impl Seating {
    /// An empty seating; `seats` has the number of seats by PF.
    pub fn new(seats: Vec<usize>) -> Self {
        let taken = vec![Vec::new(); seats.len()];
        Self { seekers: Vec::new(), seats, taken }
    }

    /// Are all seats taken?
    pub fn is_full(&self) -> bool {
        self.taken.iter().zip(&self.seats).all(|(taken, seats)| taken.len() >= *seats)
    }

    /// Seats one more guest without unseating any; seated guests may have to move to another PF, those on
    /// their present PF last. Returns whether it was possible.
    pub fn seat(&mut self, seeker: Seeker) -> bool {
        let guest = self.seekers.len();
        let home = seeker.home.filter(|home| seeker.pfs.contains(home));
        self.seekers.push(seeker);
        if let Some(home) = home
            && (self.take_free_seat(guest, &[home]) || self.seat_on(guest, &[home], false))
        {
            return true;
        }
        let pfs = self.seekers[guest].pfs.clone();
        self.take_free_seat(guest, &pfs)
            || self.seat_on(guest, &pfs, false)
            || self.seat_on(guest, &pfs, true)
    }

    /// Takes a free seat on one of these PFs, if there is one.
    fn take_free_seat(&mut self, guest: usize, pfs: &[usize]) -> bool {
        let free = pfs.iter().find(|&&pf| self.taken[pf].len() < self.seats[pf]);
        free.is_some_and(|&pf| {
            self.taken[pf].push(guest);
            true
        })
    }

    /// An augmenting path over PFs (breadth first, so that as few as possible move).
    fn seat_on(&mut self, guest: usize, pfs: &[usize], from_home_too: bool) -> bool {
        const START: usize = usize::MAX;
        // By PF: the guest that would come to it, and the PF it would come from.
        let mut reached: Vec<Option<(usize, usize)>> = vec![None; self.seats.len()];
        let mut queue = std::collections::VecDeque::new();
        for &pf in pfs {
            if reached[pf].is_none() {
                reached[pf] = Some((guest, START));
                queue.push_back(pf);
            }
        }
        while let Some(pf) = queue.pop_front() {
            if self.taken[pf].len() < self.seats[pf] {
                self.shift(pf, &reached);
                return true;
            }
            for &seated in &self.taken[pf] {
                if self.seekers[seated].home == Some(pf) && !from_home_too {
                    continue;
                }
                for &next in &self.seekers[seated].pfs {
                    if reached[next].is_none() {
                        reached[next] = Some((seated, pf));
                        queue.push_back(next);
                    }
                }
            }
        }
        false
    }

    fn shift(&mut self, mut pf: usize, reached: &[Option<(usize, usize)>]) {
        while let Some((guest, from)) = reached[pf] {
            self.taken[pf].push(guest);
            let Some(former) = self.taken.get_mut(from) else { return };
            former.retain(|&seated| seated != guest);
            pf = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_ranks_first_is_seated_if_any_seating_allows_it() {
        // Checked against trying every subset: greedy with augmenting paths is optimal (the seated
        // sets are the independent sets of a transversal matroid).
        pw_cases::check!().with_type::<(Vec<(u8, u8)>, [u8; 3])>().for_each(|(guests, seats)| {
            let seats: Vec<usize> = seats.iter().map(|n| usize::from(n % 3)).collect();
            let seekers: Vec<Seeker> = guests
                .iter()
                .take(7)
                .map(|&(mask, home)| Seeker {
                    pfs: (0..3).filter(|pf| mask & (1 << pf) != 0).collect(),
                    home: Some(usize::from(home % 4)).filter(|pf| *pf < 3),
                })
                .collect();
            let mut seating = Seating::new(seats.clone());
            let seated: Vec<bool> = seekers.iter().cloned().map(|one| seating.seat(one)).collect();
            let mut chosen: Vec<usize> = Vec::new();
            for (guest, seated) in seated.into_iter().enumerate() {
                chosen.push(guest);
                let fits = fits(&seekers, &chosen, &mut seats.clone());
                assert_eq!(seated, fits, "{guest} of {seekers:?} on {seats:?}");
                if !fits {
                    chosen.pop();
                }
            }
            for (pf, taken) in seating.taken.iter().enumerate() {
                assert!(taken.len() <= seats[pf]);
                assert!(taken.iter().all(|guest| seekers[*guest].pfs.contains(&pf)));
            }
            assert_eq!(seating.taken.iter().map(Vec::len).sum::<usize>(), chosen.len());
        });
    }

    fn fits(seekers: &[Seeker], chosen: &[usize], free: &mut Vec<usize>) -> bool {
        let Some((first, rest)) = chosen.split_first() else { return true };
        seekers[*first].pfs.iter().any(|&pf| {
            if free[pf] == 0 {
                return false;
            }
            free[pf] -= 1;
            let fits = fits(seekers, rest, free);
            free[pf] += 1;
            fits
        })
    }

    #[test]
    fn nobody_leaves_home_while_a_newcomer_can_move() {
        let anywhere = |home| Seeker { pfs: vec![0, 1], home };
        let mut seating = Seating::new(vec![1, 1]);
        assert!(seating.seat(anywhere(None)) && seating.seat(anywhere(Some(0))));
        assert_eq!(seating.taken, [vec![1], vec![0]]);
    }
}
