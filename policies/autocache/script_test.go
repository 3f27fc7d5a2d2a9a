package autocache_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/policies/autocache"
	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/policies/scripttest"
)

// TestScripts runs the scripts in testdata. These lines describe an input:
//
//	pipeline elements=1000 ms=50 demand=10      elements of the trainer, ms of a thread and ms of the trainer for each
//	source bytes=1e9 elements=1000 shared=2e8   bytes per second of all workers, alone= those of one
//	workers remote=4 local=0 threads=8          exactly these workers; most-remote= and most-local= allow more
//	goal objective=cost trainer=4.96 price=0.43 currency per hour of a trainer and of a worker; storage= of a byte
//	store read=1e9 write=5e8 free=1e12          bytes per second of all workers; work= ns of a thread per byte
//	epochs own=10
//	candidate decode ms=40 bytes=150e3          elements=, stored=, illegal="reason", role=source|full, others= epochs, jobs= of so many jobs, kept= hours
//	current decode                              with tried=1, it is in force to be measured
//	took decode s=1.2,1.25 tries=3              measured epochs that read all elements of a candidate, or "took computing"; with
//	                                            inherited=1, they are of an earlier job
//	ordered ms=30                               the lines up to here are for the registered order, and the candidates after it for another one; now=1: that is in force
//
// Or caches in a store, with sizes in bytes and times in hours:
//
//	cache a bytes=100 benefit=5                 tenant=, pinned, unused=, ttl=
//	quota bytes=200 tenant:a=100
//
// "> decide", "> orders", "> paper", "> code" and "> evict" run a policy. The lines after it are its decision. A line "pipeline" or
// "quota" begins another input.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func() scripttest.Input { return &script{} })
}

// script is the input that the lines so far describe.
type script struct {
	autocache.Input
	// registered is the input of the registered order, if there is another one; ordered says whether that is in force.
	registered *autocache.Input
	ordered    bool
	caches     []autocache.Cache
	quota      autocache.Quota
}

// Answer implements scripttest.Input.
func (s *script) Answer(t *testing.T, words []string) string {
	var out strings.Builder
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		if name != "epochs" {
			t.Fatalf("unknown option %q", word)
		}
		s.Own = scripttest.Number(t, value)
	}
	switch words[0] {
	case "decide":
		if err := s.Validate(); err != nil {
			return fmt.Sprintf("  invalid: %v\n", err)
		}
		d := autocache.Decide(s.Input)
		fmt.Fprintf(&out, "  %-10s %s\n", "computing", show(d.Compute))
		for _, c := range d.Candidates {
			if c.Eligible {
				fmt.Fprintf(&out, "  %-10s put %s; get %s; score %.4g -> %.4g; benefit %.3g\n", c.Name, show(c.Put), show(c.Get), c.Epochs*d.Compute.Score, c.Total, c.Benefit)
			}
			fmt.Fprintf(&out, "  %-10s %s\n", c.Name, c.Reason)
		}
		fmt.Fprintf(&out, "  => %s\n", d.Reason)
	case "orders":
		d, ordered := autocache.DecideOrdered(*s.registered, s.Input, s.ordered)
		for _, c := range d.Candidates {
			fmt.Fprintf(&out, "  %-10s %s\n", c.Name, c.Reason)
		}
		fmt.Fprintf(&out, "  => ordered %v: %s\n", ordered, d.Reason)
	case "paper", "code":
		policy := autocache.CachewPaper()
		if words[0] == "code" {
			policy = autocache.CachewCode()
		}
		d := policy.Decide(s.Pipeline)
		for _, c := range d.Candidates {
			fmt.Fprintf(&out, "  %-10s %s\n", c.Name, c.Reason)
		}
		fmt.Fprintf(&out, "  => %s\n", d.Reason)
	case "evict":
		e := autocache.Evict(s.caches, s.quota)
		for i, c := range s.caches {
			verdict := map[bool]string{true: "stays", false: "goes"}[e.Kept[i]]
			fmt.Fprintf(&out, "  %-10s %s: %s\n", c.Key, verdict, e.Reasons[i])
		}
	default:
		t.Fatalf("unknown policy %q", words[0])
	}
	return out.String()
}

func show(e autocache.Epoch) string {
	text := fmt.Sprintf("%.4g s with %d+%d workers, by %s", e.Seconds, e.Workers.Remote, e.Workers.Local, e.Bound)
	if e.Cost > 0 {
		text += fmt.Sprintf(", price %.3g", e.Cost)
	}
	return text
}

// Describe implements scripttest.Input.
func (s *script) Describe(t *testing.T, words []string) {
	fields, name := fieldsOf(t, words[1:])
	p := &s.Pipeline
	switch words[0] {
	case "pipeline":
		*s = script{Input: autocache.Input{Current: autocache.None, Own: 1}}
		s.Store.Free = math.Inf(1)
		s.Pipeline.Elements = fields.take("elements", 0)
		s.Pipeline.Seconds = s.Pipeline.Elements * fields.take("ms", 0) / 1e3
		s.Pipeline.Demand = fields.take("demand", 0) / 1e3
	case "ordered":
		registered := s.Input
		s.registered, s.ordered = &registered, fields.take("now", 0) > 0
		s.Current, p.Candidates, p.Seconds = autocache.None, nil, p.Elements*fields.take("ms", 0)/1e3
	case "source":
		p.SourceElements, p.SourceBytes = fields.take("elements", p.Elements), fields.take("bytes", 0)
		p.Source = autocache.Link{Alone: perByte(fields.take("alone", 0)), Shared: perByte(fields.take("shared", 0))}
	case "workers":
		threads := fields.take("threads", 1)
		s.Workers = autocache.Workers{Remote: threads, Local: threads}
		l := &s.Goal.Limits
		l.Min = autoscale.Configuration{Remote: int(fields.take("remote", 0)), Local: int(fields.take("local", 0))}
		l.Max.Remote = int(fields.take("most-remote", float64(l.Min.Remote)))
		l.Max.Local = int(fields.take("most-local", float64(l.Min.Local)))
	case "goal":
		s.Goal.Objective, s.Goal.Trainers = autoscale.Objective(fields.text["objective"]), int(fields.take("trainers", 1))
		delete(fields.text, "objective")
		s.Goal.Prices = autoscale.Prices{Trainer: fields.take("trainer", 0), Remote: fields.take("price", 0)}
		s.Goal.Budget = fields.take("budget", 0)
		s.Store.Price = fields.take("storage", 0)
	case "store":
		s.Store.Read.Shared, s.Store.Write.Shared = perByte(fields.take("read", 0)), perByte(fields.take("write", 0))
		s.Store.Read.Alone, s.Store.Write.Alone = perByte(fields.take("read-alone", 0)), perByte(fields.take("write-alone", 0))
		work := autocache.Rate{PerByte: fields.take("work", 0) / 1e9}
		s.Store.Read.Work, s.Store.Write.Work = work, work
		s.Store.Free = fields.take("free", math.Inf(1))
	case "epochs":
		s.Own = fields.take("own", 1)
	case "candidate":
		c := autocache.Candidate{
			Name: name, Illegal: fields.text["illegal"], Role: map[string]autocache.Role{"source": autocache.SourceCache, "full": autocache.FullCache}[fields.text["role"]],
		}
		delete(fields.text, "illegal")
		delete(fields.text, "role")
		c.Seconds, c.Bytes = fields.take("ms", 0)/1e3, fields.take("bytes", 0)
		c.Elements, c.Stored = fields.take("elements", p.Elements), fields.take("stored", 0)
		c.Others = autocache.Others{Epochs: fields.take("others", 0), Jobs: int(fields.take("jobs", 0)), Hours: fields.take("kept", 0)}
		p.Candidates = append(p.Candidates, c)
	case "current":
		s.Current, s.Tried = slices.IndexFunc(p.Candidates, func(c autocache.Candidate) bool { return c.Name == name }), fields.take("tried", 0) > 0
	case "took":
		epochs, tries := &p.Computed, &p.Tries
		if i := slices.IndexFunc(p.Candidates, func(c autocache.Candidate) bool { return c.Name == name }); i >= 0 {
			epochs, tries = &p.Candidates[i].Read, &p.Candidates[i].Tries
		}
		*epochs, *tries = nil, int(fields.take("tries", 0))
		inherited := fields.take("inherited", 0) > 0
		for text := range strings.SplitSeq(fields.text["s"], ",") {
			*epochs = append(*epochs, autocache.Measured{Workers: s.Goal.Limits.Min, Seconds: scripttest.Number(t, text), Inherited: inherited})
		}
		delete(fields.text, "s")
	case "quota":
		*s = script{quota: autocache.Quota{Bytes: fields.take("bytes", 0), Tenants: map[string]float64{}}}
		for field := range fields.text {
			if tenant, is := strings.CutPrefix(field, "tenant:"); is {
				s.quota.Tenants[tenant] = fields.take(field, 0)
			}
		}
	case "cache":
		_, pinned := fields.text["pinned"]
		c := autocache.Cache{Key: name, Tenant: fields.text["tenant"], Pinned: pinned}
		delete(fields.text, "pinned")
		delete(fields.text, "tenant")
		c.Bytes, c.Benefit = fields.take("bytes", 0), fields.take("benefit", 0)
		c.Unused, c.TTL = fields.take("unused", 0), fields.take("ttl", 0)
		s.caches = append(s.caches, c)
	default:
		t.Fatalf("unknown line %q", words)
	}
	if len(fields.text) > 0 {
		t.Fatalf("unknown fields in %q: %v", words, fields.text)
	}
}

// perByte is the rate of a speed in bytes per second; 0 is no bound.
func perByte(speed float64) autocache.Rate {
	if speed == 0 {
		return autocache.Rate{}
	}
	return autocache.Rate{PerByte: 1 / speed}
}

// fields are the name=value words of a line.
type fields struct {
	t    *testing.T
	text map[string]string
}

// fieldsOf returns the fields of a line, and its word without a value.
func fieldsOf(t *testing.T, words []string) (f fields, name string) {
	f = fields{t, map[string]string{}}
	for i, word := range words {
		key, value, has := strings.Cut(word, "=")
		if i == 0 && !has {
			name = word
			continue
		}
		f.text[key] = value
	}
	return f, name
}

// take returns the number in a field and removes the field.
func (f fields) take(name string, without float64) float64 {
	text, has := f.text[name]
	if !has {
		return without
	}
	delete(f.text, name)
	return scripttest.Number(f.t, text)
}
