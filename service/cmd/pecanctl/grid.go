package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// grid prints rows in columns. The last column wraps; if the other columns leave too little space, it is printed below them. Characters
// that a terminal could interpret as a command are replaced.
func grid(out io.Writer, rows [][]string, width int) {
	const gap, least = 2, 24
	clean := make([][]string, len(rows))
	var wide []int
	for r, row := range rows {
		for i, cell := range row {
			clean[r] = append(clean[r], printable(cell))
			if i == len(wide) {
				wide = append(wide, 0)
			}
			wide[i] = max(wide[i], breadth(clean[r][i])+gap)
		}
	}
	last := len(wide) - 1
	indent := 0
	for _, w := range wide[:last] {
		indent += w
	}
	below := width-indent < least
	if below {
		indent = 4
	}
	for _, row := range clean {
		head := ""
		for i, cell := range row[:last] {
			head += cell + strings.Repeat(" ", wide[i]-breadth(cell))
		}
		if below {
			fmt.Fprintln(out, strings.TrimRight(head, " "))
			head = strings.Repeat(" ", indent)
		}
		for _, part := range wrap(row[last], width-indent) {
			fmt.Fprintln(out, strings.TrimRight(head+part, " "))
			head = strings.Repeat(" ", indent)
		}
	}
}

// align puts the cells of rows below each other. Rows with one cell are text.
func align(rows [][]string) (lines []string) {
	var wide []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(wide) {
				wide = append(wide, 0)
			}
			if len(row) > 1 {
				wide[i] = max(wide[i], breadth(printable(cell)))
			}
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", wide[i]-breadth(printable(cell))+2))
			}
		}
		lines = append(lines, b.String())
	}
	return lines
}

// wrap breaks a text into lines between words, and within words that are longer than a line.
func wrap(text string, width int) []string {
	lines := []string{""}
	for _, w := range strings.Fields(text) {
		last := &lines[len(lines)-1]
		if *last != "" && breadth(*last)+1+breadth(w) <= width {
			*last += " " + w
			continue
		}
		if *last != "" {
			lines = append(lines, "")
		}
		for breadth(w) > width {
			head := fitting(w, width)
			lines[len(lines)-1], w = head, w[len(head):]
			lines = append(lines, "")
		}
		lines[len(lines)-1] = w
	}
	return lines
}

// fitting returns the longest prefix of a text that fits into width columns, and at least one character.
func fitting(text string, width int) string {
	used := 0
	for i, r := range text {
		if used += runeBreadth(r); used > width && i > 0 {
			return text[:i]
		}
	}
	return text
}

// clip cuts the middle out of a text that is too long: names differ at their ends.
func clip(text string, width int) string {
	if breadth(text) <= width {
		return text
	}
	head := fitting(text, (width-1)/2)
	runes := []rune(text)
	used, from := 0, len(runes)
	for from > 0 && used+runeBreadth(runes[from-1]) <= width-1-breadth(head) {
		from--
		used += runeBreadth(runes[from])
	}
	return head + "…" + string(runes[from:])
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		if unicode.IsSpace(r) {
			return ' '
		}
		return '�'
	}, text)
}

// breadth returns the number of columns that a text takes.
func breadth(text string) (columns int) {
	for _, r := range text {
		columns += runeBreadth(r)
	}
	return columns
}

func runeBreadth(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}
