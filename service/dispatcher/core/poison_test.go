package core_test

import (
	"fmt"
	"strings"
	"testing"
)

// kill has a worker die of the element that it makes alone, by itself or by somebody's hand.
func (s *script) kill(life int, crash bool) (said string) {
	s.t.Helper()
	worker := fmt.Sprint("w", life)
	lines := s.run(fmt.Sprintf("hello session=%d worker=%s slots=4", life, worker))
	lease := ""
	for _, line := range lines {
		if _, number, ok := strings.Cut(line, "start j1/0/0 lease="); ok {
			lease, _, _ = strings.Cut(number, " ")
		}
	}
	if lease == "" {
		s.t.Fatalf("life %d gets no stream: %v", life, lines)
	}
	s.run(fmt.Sprintf("started session=%d stream=j1/0/0 lease=%s", life, lease))
	s.run(fmt.Sprintf("mark worker=%s stream=j1/0/0 lease=%s first=4 below=5 alone files=a", worker, lease))
	if crash {
		s.run("crashes worker=" + worker)
	}
	lines = s.run(fmt.Sprintf("broken session=%d", life))
	lines = append(lines, s.run("wait 1s")...)
	for _, line := range lines {
		if strings.HasPrefix(line, "record job failed") {
			said = line
		}
	}
	return said
}

func poisonScript(t *testing.T) *script {
	s := newScript(t)
	for _, line := range []string{"start cluster=c", "dataset fingerprint=f1", "job client=a request=r1 dataset=f1 streams=1", "open client=a request=o1 job=j1"} {
		s.run(line)
	}
	return s
}

func TestThreeCrashesAtOneElementFailTheJobHoweverManyKillsComeBetween(t *testing.T) {
	s := poisonScript(t)
	life := 0
	for crash := range 3 {
		for range 2 {
			life++
			if said := s.kill(life, false); said != "" {
				t.Fatalf("life %d: %s", life, said)
			}
		}
		life++
		said := s.kill(life, true)
		if (said != "") != (crash == 2) {
			t.Fatalf("crash %d: %q", crash+1, said)
		}
		if said != "" && !strings.Contains(said, "stream 0 of epoch 0 of job j1, which reads a: 3 workers died one after the other while they made its element 4 (the last: SIGABRT of w9 at w9:1)") {
			t.Fatal(said)
		}
	}
	s.checkReplay()
}

func TestKillsFromOutsideFailAJobOnlyWhereItCannotComeFurther(t *testing.T) {
	s := poisonScript(t)
	for life := 1; life < s.cfg.MaxDeaths; life++ {
		if said := s.kill(life, false); said != "" {
			t.Fatalf("life %d: %s", life, said)
		}
	}
	said := s.kill(s.cfg.MaxDeaths, false)
	if !strings.Contains(said, "12 workers died one after the other while they made its element 4 (the last: w12 at w12:1). Not all of them said why") {
		t.Fatal(said)
	}
	s.checkReplay()
}
