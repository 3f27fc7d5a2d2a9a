package hostid

import "testing"

func TestTheHostIdStaysTheSame(t *testing.T) {
	t.Parallel()
	first, err := Get()
	if err != nil {
		t.Fatal(err)
	}
	second, err := Get()
	if err != nil {
		t.Fatal(err)
	}
	if first != second || len(first) != 24 {
		t.Errorf("got %q and %q, want the same 24 digits twice", first, second)
	}
}

func TestTheHostIdFollowsFromBootAndNamespace(t *testing.T) {
	t.Parallel()
	base, err := join("b1\n", "net:[1]")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		boot, namespace string
		same, fails     bool
	}{
		"white space at the end does not count": {boot: "b1", namespace: "net:[1]", same: true},
		"another boot is another host":          {boot: "b2", namespace: "net:[1]"},
		"another namespace is another host":     {boot: "b1", namespace: "net:[2]"},
		"parts do not run into each other":      {boot: "b1\nnet", namespace: ":[1]"},
		"an empty boot id is refused":           {boot: "\n", namespace: "net:[1]", fails: true},
		"an empty namespace is refused":         {boot: "b1", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, err := join(tc.boot, tc.namespace)
			if (err != nil) != tc.fails {
				t.Fatalf("error %v, want failure: %v", err, tc.fails)
			}
			if !tc.fails && (id == base) != tc.same {
				t.Errorf("id %q against %q, want equal: %v", id, base, tc.same)
			}
		})
	}
}
