// Package archtest owns the rules of the house that a compiler does not check:
// who may import whom, what a file and a package look like, and what production
// code must leave alone. It holds nothing but tests; each rule is a function
// over parsed packages, run over the whole repository and over small samples
// that break it. It does not judge style: gofmt and the linters do.
//
// To add a package, add its row to the table in table_test.go, with the
// sentence that says what it owns.
package archtest
