// Command kube is every Kubernetes program of the local cluster in one binary, chosen by the name it is called by.
//
// One binary because the programs share most of their packages: it builds in minutes where separate
// builds take a multiple, and the running daemons share its pages in memory.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
	"github.com/spf13/cobra"
	helm "helm.sh/helm/v4/pkg/cmd"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps the name of a program to its start; each returns the exit code.
var programs = map[string]func() int{
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              run(kubeproxy.NewProxyCommand),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 run(kubectl.NewDefaultKubectlCommand),
	"helm":                    runHelm,
	"coredns":                 runCoreDNS,
}

func run(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func runHelm() int {
	// A nil logger set-up makes NewRootCmd panic, hence the one helm itself uses.
	root, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		return 1
	}
	if err := root.Execute(); err != nil {
		return 1
	}
	return 0
}

func runCoreDNS() int {
	// The order is the order in which a query passes the plugins.
	dnsserver.Directives = []string{"health", "ready", "errors", "cache", "loadbalance", "kubernetes", "template"}
	coremain.Run()
	return 0
}

func main() {
	name := filepath.Base(os.Args[0])
	program, known := programs[name]
	if !known {
		names := make([]string, 0, len(programs))
		for n := range programs {
			names = append(names, n)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "%s: call this binary by the name of one of: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(program())
}
