package validate

import (
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestNumbersOfStreamsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		options *pecanv1.JobOptions
		want    string
	}{
		"auto":             {&pecanv1.JobOptions{}, ""},
		"the largest":      {&pecanv1.JobOptions{Streams: MaxStreams}, ""},
		"too many":         {&pecanv1.JobOptions{Streams: MaxStreams + 1}, "want 1 to 65536"},
		"negative":         {&pecanv1.JobOptions{Streams: -1}, "want 1 to 65536"},
		"without sharding": {&pecanv1.JobOptions{Streams: 2, Mode: pecanv1.Mode_MODE_OFF}, "choose another sharding policy"},
	} {
		o, err := Options(c.options)
		if c.want == "" && (err != nil || o.Streams != c.options.Streams) || c.want != "" && (!reason.Is(err, reason.BadArgument) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: options %v, error %v, want %q", name, o, err, c.want)
		}
	}
	for _, d := range []*pecanv1.Division{{NumStreams: -1}, {NumStreams: MaxStreams + 1}, {NumStreams: 4, Group: 5}, {NumStreams: 4, Group: -1}} {
		if err := Division(d); !reason.Is(err, reason.BadArgument) {
			t.Errorf("division %v: %v", d, err)
		}
	}
	for _, d := range []*pecanv1.Division{nil, {NumStreams: 16}, {NumStreams: MaxStreams, Group: 16}} {
		if err := Division(d); err != nil {
			t.Errorf("division %v: %v", d, err)
		}
	}
}

func TestTheDefaultOfCacheIsCandidates(t *testing.T) {
	for asked, want := range map[pecanv1.Cache]pecanv1.Cache{
		pecanv1.Cache_CACHE_UNSPECIFIED: pecanv1.Cache_CACHE_CANDIDATES, pecanv1.Cache_CACHE_AUTO: pecanv1.Cache_CACHE_AUTO, pecanv1.Cache_CACHE_OFF: pecanv1.Cache_CACHE_OFF,
	} {
		if o, err := Options(&pecanv1.JobOptions{Cache: asked}); err != nil || o.Cache != want {
			t.Errorf("%v: %v, %v", asked, o.GetCache(), err)
		}
	}
	if _, err := Options(&pecanv1.JobOptions{Cache: 9}); !reason.Is(err, reason.BadArgument) {
		t.Errorf("an unknown choice: %v", err)
	}
}
