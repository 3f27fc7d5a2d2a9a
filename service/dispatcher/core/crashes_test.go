package core_test

import (
	"fmt"
	"strings"
	"testing"
)

// kill lets a worker die at the element that it computes alone, by a crash or a kill from outside.
func (s *script) kill(number int, crash bool) (failure string) {
	s.t.Helper()
	_, failure = s.live(number, crash, "first=4 below=5 exclusive files=a")
	return failure
}

// live lets a worker mark elements of the stream in order, and die. It returns the worker's start command and the
// end of the job.
func (s *script) live(number int, crash bool, marks ...string) (start, failure string) {
	s.t.Helper()
	worker := fmt.Sprint("w", number)
	start, lease := s.started(s.run(fmt.Sprintf("hello session=%d worker=%s slots=4", number, worker)))
	s.run(fmt.Sprintf("started session=%d stream=j1/0/0 lease=%s", number, lease))
	for _, mark := range marks {
		s.run(fmt.Sprintf("mark worker=%s stream=j1/0/0 lease=%s %s", worker, lease, mark))
	}
	if crash {
		s.run("crashes worker=" + worker)
	}
	lines := s.run(fmt.Sprintf("broken session=%d", number))
	lines = append(lines, s.run("wait 1s")...)
	for _, line := range lines {
		if strings.HasPrefix(line, "record job failed") {
			failure = line
		}
	}
	return start, failure
}

// started finds the stream's start command and its lease.
func (s *script) started(lines []string) (start, lease string) {
	s.t.Helper()
	for _, line := range lines {
		if _, number, ok := strings.Cut(line, "start j1/0/0 lease="); ok {
			lease, _, _ = strings.Cut(number, " ")
			return line, lease
		}
	}
	s.t.Fatalf("no worker gets the stream: %v", lines)
	return "", ""
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
	number := 0
	for crash := range 3 {
		for range 2 {
			number++
			if failure := s.kill(number, false); failure != "" {
				t.Fatalf("worker %d: %s", number, failure)
			}
		}
		number++
		failure := s.kill(number, true)
		if (failure != "") != (crash == 2) {
			t.Fatalf("crash %d: %q", crash+1, failure)
		}
		if failure != "" && !strings.Contains(failure, "stream 0 of epoch 0 of job j1, which reads a: 3 workers died in a row while they computed its element 4 (the last one: SIGABRT of w9 at w9:1)") {
			t.Fatal(failure)
		}
	}
	s.checkReplay()
}

func TestKillsFromOutsideFailAJobOnlyWithoutProgress(t *testing.T) {
	s := poisonScript(t)
	for number := 1; number < s.cfg.MaxDeaths; number++ {
		if failure := s.kill(number, false); failure != "" {
			t.Fatalf("worker %d: %s", number, failure)
		}
	}
	failure := s.kill(s.cfg.MaxDeaths, false)
	if !strings.Contains(failure, "12 workers died in a row while they computed its element 4 (the last one: w12 at w12:1). Not all of them reported a cause") {
		t.Fatal(failure)
	}
	s.checkReplay()
}

func TestAnElementInFlightIsFoundByTheThirdCrash(t *testing.T) {
	for name, second := range map[string]string{"asked for another one": "first=6 below=7 ahead", "waits": "first=7 below=7 ahead"} {
		t.Run(name, func(t *testing.T) {
			s := poisonScript(t)
			if start, failure := s.live(1, true); strings.Contains(start, "serial") || failure != "" {
				t.Fatal(start, failure)
			}
			if start, failure := s.live(2, true, second); strings.Contains(start, "serial") || failure != "" {
				t.Fatal(start, failure)
			}
			start, failure := s.live(3, true, "first=6 below=7 exclusive", "first=7 below=8 exclusive", "first=69 below=70 exclusive files=a")
			if !strings.Contains(start, "serial until=1031") {
				t.Error(start)
			}
			if !strings.Contains(failure, "which reads a: 3 workers died in a row while they computed its element 69 (the last one: SIGABRT of w3 at w3:1)") {
				t.Error(failure)
			}
			s.checkReplay()
		})
	}
}

func TestARunThatWaitsIsNotBlamed(t *testing.T) {
	s := poisonScript(t)
	for number := 1; number < 30; number++ {
		if _, failure := s.live(number, true, "first=6 below=7 ahead", "first=7 below=7 ahead"); failure != "" {
			t.Fatalf("worker %d: %s", number, failure)
		}
	}
	s.checkReplay()
}

func TestKillsAtLaterElementsFailNoJobWhateverTheReadAhead(t *testing.T) {
	s := poisonScript(t)
	for number := 1; number < 30; number++ {
		start, failure := s.live(number, number == 2, fmt.Sprintf("first=%d below=%d ahead", 10*number, 10*number+1))
		if failure != "" || strings.Contains(start, "serial") {
			t.Fatalf("worker %d: %s %s", number, start, failure)
		}
	}
	s.checkReplay()
}

func TestKillsAtEarlierElementsFailNoJobWhateverTheReadAhead(t *testing.T) {
	s := poisonScript(t)
	for number := 1; number < 30; number++ {
		if _, failure := s.live(number, false, fmt.Sprintf("first=%d below=%d ahead", 500-10*number, 505-10*number)); failure != "" {
			t.Fatalf("worker %d: %s", number, failure)
		}
	}
	s.checkReplay()
}

func TestAStreamRunsInParallelAgainAfterHarmlessSuspects(t *testing.T) {
	s := poisonScript(t)
	s.live(1, true)
	s.live(2, true, "first=6 below=7 ahead")
	start, lease := s.started(s.run("hello session=3 worker=w3 slots=4"))
	if !strings.Contains(start, "serial until=1031") {
		t.Fatal(start)
	}
	s.run("started session=3 stream=j1/0/0 lease=" + lease)
	for _, first := range []int{6, 1030} {
		if lines := s.run(fmt.Sprintf("mark worker=w3 stream=j1/0/0 lease=%s first=%d below=%d exclusive", lease, first, first+1)); strings.Contains(strings.Join(lines, " "), "lease") {
			t.Fatal(first, lines)
		}
	}
	start, lease = s.started(s.run(fmt.Sprintf("mark worker=w3 stream=j1/0/0 lease=%s first=1031 below=1033", lease)))
	if strings.Contains(start, "serial") {
		t.Fatal(start)
	}
	s.run("started session=3 stream=j1/0/0 lease=" + lease)
	s.run("crashes worker=w3")
	s.run("broken session=3")
	s.run("wait 1s")
	// Steps that read ahead further than that get more room the next time.
	s.live(4, true, "first=6 below=7 ahead")
	if start, _ = s.live(5, false); !strings.Contains(start, "serial until=2055") {
		t.Error(start)
	}
	s.checkReplay()
}
