package archtest_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// maxLines is how long a file may be; testdata is not counted.
const maxLines = 600

func TestPackageComment(t *testing.T) {
	holds(t, oneComment)
	samples(t, oneComment, []sample{
		{name: "one", files: map[string]string{"doc.go": "// Package bus carries calls.\npackage bus", "a.go": "package bus"}},
		{name: "none", files: map[string]string{"a.go": "// not attached\n\npackage bus"}, want: []string{"no package comment"}},
		{name: "two", files: map[string]string{"a.go": "// Package bus a.\npackage bus", "b.go": "// Package bus b.\npackage bus"}, want: []string{"2 package comments"}},
		{name: "wrong name", files: map[string]string{"a.go": "// Package car drives.\npackage bus"}, want: []string{`begin with "Package bus "`}},
		{name: "program", path: "cmd/node", files: map[string]string{"main.go": "// Command node hosts modules.\npackage main"}},
		{name: "tests only", path: "integration", files: map[string]string{"a_test.go": "package integration_test"}, want: []string{"no package comment"}},
	})
}

func oneComment(p *goPackage) []string {
	var comments []string
	name := path.Base(p.path)
	for _, f := range p.production() {
		name = f.ast.Name.Name
		if f.ast.Doc != nil {
			comments = append(comments, f.ast.Doc.Text())
		}
	}
	switch {
	case len(comments) == 0:
		return []string{p.path + ": no package comment; say what the package owns and what it does not"}
	case len(comments) > 1:
		return []string{fmt.Sprintf("%s: %d package comments, want one", p.path, len(comments))}
	}
	if name != "main" && !strings.HasPrefix(comments[0], "Package "+name+" ") {
		return []string{fmt.Sprintf("%s: the package comment must begin with %q", p.path, "Package "+name+" ")}
	}
	return nil
}

func TestFileSize(t *testing.T) {
	holds(t, filesAreShort)
	samples(t, filesAreShort, []sample{
		{name: "at the limit", files: map[string]string{"a.go": "package bus" + strings.Repeat("\n", maxLines)}},
		{name: "over it", files: map[string]string{"a.go": "package bus" + strings.Repeat("\n", maxLines+1)}, want: []string{"601 lines"}},
		{name: "tests too", files: map[string]string{"a_test.go": "package bus" + strings.Repeat("\n", maxLines+1)}, want: []string{"601 lines"}},
	})
}

func filesAreShort(p *goPackage) []string {
	var findings []string
	for _, f := range p.files {
		if f.lines > maxLines {
			findings = append(findings, fmt.Sprintf("%s: %d lines, want at most %d; one idea per file", f.name, f.lines, maxLines))
		}
	}
	return findings
}

func TestBlackBoxTests(t *testing.T) {
	holds(t, testsAreBlackBox)
	samples(t, testsAreBlackBox, []sample{
		{name: "outside", files: map[string]string{"a_test.go": "package bus_test"}},
		{name: "inside, and says so", files: map[string]string{"a_internal_test.go": "package bus"}},
		{name: "inside", files: map[string]string{"a_test.go": "package bus"}, want: []string{"must be package bus_test"}},
		{name: "says inside and is not", files: map[string]string{"a_internal_test.go": "package bus_test"}, want: []string{"says internal"}},
	})
}

func testsAreBlackBox(p *goPackage) []string {
	var findings []string
	for _, f := range p.tests() {
		inside := !strings.HasSuffix(f.ast.Name.Name, "_test")
		switch says := strings.HasSuffix(f.name, "_internal_test.go"); {
		case inside && !says:
			findings = append(findings, fmt.Sprintf("%s: must be package %s_test, or be named _internal_test.go", f.name, f.ast.Name.Name))
		case !inside && says:
			findings = append(findings, f.name+": the name says internal, the package does not")
		}
	}
	return findings
}

func TestPackageNames(t *testing.T) {
	holds(t, namesSaySomething)
	samples(t, namesSaySomething, []sample{
		{name: "good", files: map[string]string{"a.go": "package bus"}},
		{name: "drawer", path: "bus/util", files: map[string]string{"a.go": "package util"}, want: []string{"util"}},
		{name: "drawer in the path", path: "common/bus", files: map[string]string{"a.go": "package bus"}, want: []string{"common"}},
	})
}

func namesSaySomething(p *goPackage) []string {
	for _, element := range strings.Split(p.path, "/") {
		if slices.Contains(banned, element) {
			return []string{fmt.Sprintf("%s: %q does not say what the package owns", p.path, element)}
		}
	}
	return nil
}
