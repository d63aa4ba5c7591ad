//! Property tests with the same cases in each run, where bolero draws new ones, so that a test may pass
//! today and fail tomorrow. `PLANEWISE_NEW_SEEDS=1` draws new ones here, too (`make seeds`), and
//! `BOLERO_RANDOM_SEED` only the case of a failure. Under `cargo bolero test` they are fuzz targets.

#[doc(hidden)]
pub use bolero;

/// A property test: `check!()`, or `check!(COUNT)` where a case takes long; continues like
/// `bolero::check!()`.
#[macro_export]
#[cfg(fuzzing)]
macro_rules! check {
    ($($count:expr)?) => {
        $crate::bolero::check!()
    };
}

/// A property test: `check!()`, or `check!(COUNT)` where a case takes long; continues like
/// `bolero::check!()`.
#[macro_export]
#[cfg(not(fuzzing))]
macro_rules! check {
    () => {
        $crate::check!(1000)
    };
    ($count:expr) => {
        $crate::bolero::TestTarget::<$crate::bolero::ByteSliceGenerator, _, _>::new(
            $crate::Cases::new($count),
        )
    };
}

#[cfg(not(fuzzing))]
pub use drawn::Cases;

#[cfg(not(fuzzing))]
mod drawn {
    use std::fmt::Debug;
    use std::hash::{BuildHasher, RandomState};

    use bolero::bolero_engine::input::Input;
    use bolero::bolero_engine::rng::Recommended;
    use bolero::bolero_engine::{Engine, Failure, Seed, Test, panic};
    use bolero::generator::TypeGenerator;
    use bolero::generator::bolero_generator::driver::{Options, Rng};
    use rand_core::{RngCore, SeedableRng};

    /// Cases, each drawn from a seed of its own.
    #[derive(Debug)]
    pub struct Cases(Vec<Seed>);

    impl Cases {
        /// `count` cases, or the single one that the environment names.
        pub fn new(count: u32) -> Self {
            let variable = |name| std::env::var(name).ok();
            if let Some(seed) = variable("BOLERO_RANDOM_SEED").and_then(|seed| seed.parse().ok()) {
                return Self(vec![seed]);
            }
            let seed = match variable("PLANEWISE_NEW_SEEDS") {
                Some(_) => RandomState::new().hash_one(()),
                None => 0,
            };
            let mut seeds = Recommended::seed_from_u64(seed);
            let mut draw = || Seed::from(seeds.next_u64()) << 64 | Seed::from(seeds.next_u64());
            Self((0..count).map(|_| draw()).collect())
        }
    }

    impl<T: Test> Engine<T> for Cases
    where
        T::Value: Debug,
    {
        type Output = ();

        fn run(self, mut test: T, options: Options) {
            panic::set_hook();
            panic::forward_panic(false);
            for seed in self.0 {
                if let Err(error) = test.test(&mut Case::new(seed, &options)) {
                    let mut case = Case::new(seed, &options);
                    let input = test.generate_value(&mut case);
                    let drawn = case.driver.as_ref().drawn.clone();
                    let smaller = test.shrink(drawn, Some(seed), &options);
                    panic::forward_panic(true);
                    let failed = Failure { seed: Some(seed), error, input };
                    panic!("{:#}", smaller.unwrap_or(failed));
                }
            }
            panic::forward_panic(true);
        }
    }

    /// The input that a seed gives.
    struct Case {
        driver: Rng<Recorder>,
        slice: Vec<u8>,
    }

    impl Case {
        fn new(seed: Seed, options: &Options) -> Self {
            let rng = Recommended::from_seed(seed.to_le_bytes());
            let driver = Rng::new(Recorder { rng, drawn: Vec::new() }, options);
            Self { driver, slice: Vec::new() }
        }
    }

    impl<Output> Input<Output> for Case {
        type Driver = Rng<Recorder>;

        fn with_slice<F: FnMut(&[u8]) -> Output>(&mut self, with: &mut F) -> Output {
            self.slice.mutate(&mut self.driver);
            with(&self.slice)
        }

        fn with_driver<F: FnMut(&mut Self::Driver) -> Output>(&mut self, with: &mut F) -> Output {
            with(&mut self.driver)
        }
    }

    /// Records the drawn bytes, by which a failing case is made smaller.
    struct Recorder {
        rng: Recommended,
        drawn: Vec<u8>,
    }

    impl RngCore for Recorder {
        fn next_u32(&mut self) -> u32 {
            let mut bytes = [0; 4];
            self.fill_bytes(&mut bytes);
            u32::from_le_bytes(bytes)
        }

        fn next_u64(&mut self) -> u64 {
            let mut bytes = [0; 8];
            self.fill_bytes(&mut bytes);
            u64::from_le_bytes(bytes)
        }

        fn fill_bytes(&mut self, bytes: &mut [u8]) {
            self.rng.fill_bytes(bytes);
            self.drawn.extend_from_slice(bytes);
        }
    }
}

#[cfg(all(test, not(fuzzing)))]
mod tests {
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn drawn() -> Vec<(u32, String)> {
        let drawn = AssertUnwindSafe(RefCell::new(Vec::new()));
        check!(20).with_type::<(u32, String)>().for_each(|case| {
            drawn.borrow_mut().push(case.clone());
        });
        drawn.0.into_inner()
    }

    #[test]
    fn cases_are_the_same_each_time_and_differ_from_each_other() {
        let first = drawn();
        assert_eq!(first, drawn());
        assert_eq!(first.len(), 20);
        let mut numbers: Vec<u32> = first.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 20);
    }

    #[test]
    fn a_failure_names_its_seed_and_a_small_case() {
        let failed = catch_unwind(|| {
            check!().with_type::<Vec<u8>>().for_each(|bytes| assert!(bytes.len() < 3));
        });
        let message = *failed.expect_err("it fails").downcast::<String>().expect("words");
        assert!(message.contains("BOLERO_RANDOM_SEED="), "{message}");
        assert!(message.matches("0,\n").count() >= 3, "{message}");
    }
}
