package main

import "runtime"

// versionCmd prints the version.
type versionCmd struct{}

// Run prints the version.
func (*versionCmd) Run(s *session) error {
	if s.stdout.json {
		return s.stdout.document(map[string]any{
			"version": s.spec.Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
		})
	}
	return s.stdout.line("apbus %s", s.spec.Version)
}
