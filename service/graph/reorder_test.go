package graph

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheOrderAsItWasGivesTheSameDataset(t *testing.T) {
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	ordered := 0
	for _, file := range files {
		name, isGraph := strings.CutSuffix(filepath.Base(file.Name()), ".pb")
		if !isGraph {
			continue
		}
		data, err := os.ReadFile(filepath.Join("testdata", file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		g, err := Parse(data, Limits{})
		if err != nil {
			continue
		}
		var order []string
		for _, s := range TraitsOf(g) {
			order = append(order, s.Node)
		}
		again, err := Reorder(g, order)
		if _, isTree := g.tree(); !isTree {
			if err == nil {
				t.Errorf("%s reads a part twice, and was put in order", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ordered++
		written, err := again.Serialized()
		if err != nil {
			t.Fatal(err)
		}
		if read, err := Parse(written, Limits{}); err != nil || read.Fingerprint() != g.Fingerprint() {
			t.Errorf("%s is another dataset (%v)", name, err)
		}
	}
	if ordered < 50 {
		t.Errorf("%d were tried", ordered)
	}
}
