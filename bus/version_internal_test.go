package bus

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSemVer(t *testing.T) {
	for _, tt := range []struct{ name, version, want string }{
		{"a SemVer stays", "1.2.3-rc.1+b7", "1.2.3-rc.1+b7"},
		{"a tag loses its v", "v1.2.3", "1.2.3"},
		{"a tag and what came after it", "v1.2.3-4-gabc123", "1.2.3-4-gabc123"},
		{"a build without a version", "dev", "0.0.0+dev"},
		{"a commit with changes", "0123abc-dirty", "0.0.0+0123abc-dirty"},
		{"two numbers", "1.2", "0.0.0+1-2"},
		{"a leading zero", "01.2.3", "0.0.0+01-2-3"},
		{"nothing", "", "0.0.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := semVer(tt.version); got != tt.want {
				t.Errorf("semVer(%q) = %q, want %q", tt.version, got, tt.want)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.String().Draw(t, "version")
		if got := semVer(v); !semVerShape.MatchString(got) {
			t.Fatalf("semVer(%q) = %q, which is no SemVer", v, got)
		}
	})
}
