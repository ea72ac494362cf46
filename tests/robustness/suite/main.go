//go:debug randseednop=0

// Command suite drives a datastore with the traffic of etcd's robustness tests, records what its
// clients see, and judges the history with etcd's models and validators. The tests in
// tests/robustness run it on a host beside the datastore, and make faults meanwhile.
//
//	suite -endpoints http://172.31.0.2:2379,… [-traffic …] [-etcd] [-seed N] [-folder FOLDER]
//
// It prints "started" when the traffic runs. A line on its standard input ends the traffic. The line
// names a file with rows that the datastore has stored (see readRows), or is empty. The last line of
// the output is the Verdict, in JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"os"
	"strings"

	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

// Verdict is the result of a run.
type Verdict struct {
	// Violation names the validator that objects, and what it says. It is empty if the history is
	// right.
	Violation string `json:"violation,omitempty"`
	// Inconclusive says why the history cannot be judged.
	Inconclusive string `json:"inconclusive,omitempty"`
	Counts       Counts `json:"counts"`
}

// traffics are the kinds of traffic: those of Kubernetes. Others have transactions about several keys
// and leases that are kept alive, which no datastore but etcd has.
var traffics = map[string]traffic.Traffic{
	"kubernetes":               traffic.Kubernetes,
	"kubernetes-create-delete": traffic.KubernetesCreateDelete,
}

func main() {
	log.SetFlags(0)
	endpoints := flag.String("endpoints", "", "where the datastore answers, separated by commas")
	kind := flag.String("traffic", "kubernetes", "the kind of traffic")
	etcd := flag.Bool("etcd", false, "the datastore is etcd, and promises all that etcd does")
	seed := flag.Int64("seed", 1, "the seed for the choices of the traffic")
	rate := flag.Float64("rate", 200, "the largest number of requests in a second")
	folder := flag.String("folder", "", "where to leave the history of a violation")
	flag.Parse()
	chosen, known := traffics[*kind]
	if !known {
		log.Fatalf("unknown traffic %q", *kind)
	}
	// The traffic takes its choices from the shared source, which cannot be seeded in another way.
	rand.Seed(*seed)

	d := newDriver(strings.Split(*endpoints, ","), chosen, *rate)
	lines := bufio.NewScanner(os.Stdin)
	var rows string
	reports, err := d.drive(context.Background(), func() error {
		fmt.Println("started")
		if !lines.Scan() {
			return fmt.Errorf("wait for the end of the traffic: %w", lines.Err())
		}
		rows = lines.Text()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	stored, err := readRows(rows)
	if err != nil {
		log.Fatal(err)
	}
	verdict := judge(reports, stored, *etcd, *folder)
	if err := json.NewEncoder(os.Stdout).Encode(verdict); err != nil {
		log.Fatal(err)
	}
}
