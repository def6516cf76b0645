//go:build !race

package contextwire_test

// raceEnabled says that the race detector adds to what is allocated.
const raceEnabled = false
