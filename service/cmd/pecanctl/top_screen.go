package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// leastRoom is the number of lines below which a screen shows jobs only.
const leastRoom = 5

// screenLines returns the lines of one screen. With a height, tables leave rows out until it fits. problem is shown
// below the first line.
func screenLines(s *pecanv1.StatusResponse, problem string, width, height int) []string {
	head := fmt.Sprintf("cluster %s, up %s: %d workers, %d jobs, %d clients", s.ClusterId, seconds(s.UptimeS), len(s.Workers), len(s.Jobs), s.Clients)
	lines := []string{head}
	if problem != "" {
		lines = append(lines, problem)
	}
	jobs, workers := jobRows(s), workerRows(s)
	if height > 0 {
		// Two empty lines separate the tables.
		room := max(height-len(lines)-2, 0)
		if room < leastRoom {
			room, workers = room+1, nil
		}
		// The larger table gives way first.
		forJobs := min(len(jobs), max(room/2, room-len(workers)))
		jobs, workers = shorten(jobs, forJobs, "jobs"), shorten(workers, room-forJobs, "workers")
	}
	lines = append(append(lines, ""), align(jobs)...)
	if len(workers) > 0 {
		lines = append(append(lines, ""), align(workers)...)
	}
	if height > 0 {
		lines = lines[:min(len(lines), height)]
	}
	for i, line := range lines {
		line = printable(line)
		if breadth(line) > width {
			line = fitting(line, width)
		}
		lines[i] = strings.TrimRight(line, " ")
	}
	return lines
}

// shorten leaves rows out of a table that has more lines than there is room for. The last line counts them.
func shorten(rows [][]string, room int, what string) [][]string {
	if len(rows) <= room {
		return rows
	}
	if room < 2 {
		return rows[:min(room, len(rows))]
	}
	kept := slices.Clone(rows[:room-1])
	return append(kept, []string{fmt.Sprintf("%d more %s", len(rows)-len(kept), what)})
}

// jobRows returns a row for each job, those that are read first.
func jobRows(s *pecanv1.StatusResponse) [][]string {
	if len(s.Jobs) == 0 {
		return [][]string{{"no job is open"}}
	}
	rows := [][]string{{"JOB", "TRAINERS", "WAIT", "ELEMENTS/S", "REMOTE", "LOCAL", "WANTED", "COST/H", "SEARCH", "WHY"}}
	jobs := slices.Clone(s.Jobs)
	slices.SortStableFunc(jobs, func(a, b *pecanv1.JobStatus) int {
		return cmp.Compare(min(len(b.Consumers), 1), min(len(a.Consumers), 1))
	})
	for _, job := range jobs {
		wanted, search, why := "all", "-", ""
		if p := job.Placement; p != nil {
			wanted, search, why = fmt.Sprintf("%d+%d", p.Remote, p.Local), p.State, p.Why
		}
		cost := "-"
		if p := job.Fleet.GetPrices(); p != nil {
			cost = priced(p.Job, p)
		}
		wait, rate := "-", "-"
		if len(job.Consumers) > 0 {
			wait, rate = waits(job.Consumers), speed(job.Consumers)
		}
		rows = append(rows, []string{
			clip(orElse(job.Name, job.JobId), longestName), fmt.Sprint(len(job.Consumers)), wait, rate, fmt.Sprint(job.Fleet.GetRemote()),
			fmt.Sprint(job.Fleet.GetLocal()), wanted, cost, search, why,
		})
	}
	return rows
}

// waits formats the share of the time that trainers wait: one number, or the least and the most.
func waits(consumers []*pecanv1.ConsumerStatus) string {
	least, most := consumers[0].Wait, consumers[0].Wait
	for _, c := range consumers {
		least, most = min(least, c.Wait), max(most, c.Wait)
	}
	low, high := fmt.Sprintf("%.0f", 100*least), fmt.Sprintf("%.0f", 100*most)
	if low == high {
		return high + " %"
	}
	return low + "-" + high + " %"
}

// speed formats the elements per second of all trainers.
func speed(consumers []*pecanv1.ConsumerStatus) string {
	sum := 0.0
	for _, c := range consumers {
		if c.ElementS > 0 {
			sum += 1 / c.ElementS
		}
	}
	if sum >= 99.95 {
		return fmt.Sprintf("%.0f", sum)
	}
	return fmt.Sprintf("%.1f", sum)
}

// workerRows returns a row for each worker: first those that are not connected, then the busiest.
func workerRows(s *pecanv1.StatusResponse) [][]string {
	if len(s.Workers) == 0 {
		return [][]string{{"no worker is registered; start one with pecan-worker --dispatcher HOST:PORT"}}
	}
	rows := [][]string{{"WORKER", "KIND", "STATE", "BUSY", "CPU", "STREAMS", "SENT/S", "ADDRESS"}}
	workers := slices.Clone(s.Workers)
	connected := func(w *pecanv1.WorkerStatus) int {
		if w.State == "connected" {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(workers, func(a, b *pecanv1.WorkerStatus) int {
		return cmp.Or(cmp.Compare(connected(a), connected(b)), cmp.Compare(b.Busy, a.Busy))
	})
	for _, w := range workers {
		running := 0
		for _, stream := range w.Streams {
			if !stream.Ended {
				running++
			}
		}
		rows = append(rows, []string{
			clip(w.Address.GetWorkerId(), longestName), orElse(w.Kind, "-"), w.State, fmt.Sprintf("%.0f %%", 100*w.Busy),
			fmt.Sprintf("%.1f of %d", w.Cpu, w.Cores), fmt.Sprintf("%d/%d", running, w.MaxStreams), size(int64(w.SentBytesS)),
			orElse(w.Address.GetTcp(), w.Address.GetUnix()),
		})
	}
	return rows
}
