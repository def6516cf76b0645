//go:build race

package integration_test

// raceEnabled says that the programs are built with the race detector too.
const raceEnabled = true
