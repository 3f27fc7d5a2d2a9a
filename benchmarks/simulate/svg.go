package main

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// drawing is an SVG picture. All coordinates are rounded, so that equal inputs give equal bytes.
type drawing struct{ b strings.Builder }

func newDrawing(width, height float64, title string) *drawing {
	d := &drawing{}
	fmt.Fprintf(&d.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]s %[2]s" width="%[1]s" height="%[2]s" font-family="sans-serif" font-size="12" role="img">`+"\n",
		coordinate(width), coordinate(height))
	fmt.Fprintf(&d.b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n", html.EscapeString(title))
	return d
}

func coordinate(v float64) string { return strconv.FormatFloat(math.Round(10*v)/10, 'f', -1, 64) }

func (d *drawing) String() string { return d.b.String() + "</svg>\n" }

// text writes a text; anchor is "start", "middle" or "end".
func (d *drawing) text(x, y float64, anchor, style, text string) {
	fmt.Fprintf(&d.b, `<text x="%s" y="%s" text-anchor="%s" %s>%s</text>`+"\n", coordinate(x), coordinate(y), anchor, style, html.EscapeString(text))
}

func (d *drawing) line(x1, y1, x2, y2 float64, style string) {
	fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" %s/>`+"\n", coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2), style)
}

func (d *drawing) circle(x, y, radius float64, style string) {
	fmt.Fprintf(&d.b, `<circle cx="%s" cy="%s" r="%s" %s/>`+"\n", coordinate(x), coordinate(y), coordinate(radius), style)
}

// path draws points, joined by lines.
func (d *drawing) path(points [][2]float64, closed bool, style string) {
	d.b.WriteString(`<path d="`)
	for i, p := range points {
		d.b.WriteString(map[bool]string{true: "M", false: "L"}[i == 0] + coordinate(p[0]) + " " + coordinate(p[1]))
	}
	if closed {
		d.b.WriteString("Z")
	}
	fmt.Fprintf(&d.b, `" %s/>`+"\n", style)
}

// axis maps values to coordinates.
type axis struct {
	low, high   float64
	from, to    float64
	logarithmic bool
}

// at returns the coordinate of a value. Values beyond the ends are at the ends.
func (a axis) at(v float64) float64 {
	v = min(max(v, a.low), a.high)
	share := (v - a.low) / (a.high - a.low)
	if a.logarithmic {
		share = math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return a.from + share*(a.to-a.from)
}
