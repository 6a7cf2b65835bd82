# Drawn by kvsim; `gnuplot bytes_vs_step.gp` in this folder draws it again.
reset session
set encoding utf8
set datafile separator ','
set datafile commentschars ''
set border 3 lw 1.2 lc rgb '#333333'
set tics nomirror out
set grid lc rgb '#dddddd' lw 1 lt 1 dt solid
set key at screen 0.5, screen 0.02074688796680498 center bottom vertical maxrows 1 Left reverse samplen 3 noenhanced
set lmargin at screen 0.14444444444444443
set rmargin at screen 0.9583333333333334
set tmargin at screen 0.8941908713692946
set bmargin at screen 0.20975103734439832
set label 'Cache held over decode steps: trace t, budget 4 entries' at screen 0.5, screen 0.9491701244813278 center noenhanced
set style textbox opaque noborder margins 0.3,0.3
set xlabel 'decode step' noenhanced
set ylabel 'keys, values and side data (KiB)' noenhanced
set xrange [0.925:4.075]
set yrange [0:0.52]
set xtics ('1' 1, '2' 2, '3' 3, '4' 4)
$stripes << EOD
EOD
$marks << EOD
0,1,416
0,2,448
0,3,480
0,4,512
1,1,144
1,2,144
1,3,144
1,4,144
EOD
$lone_marks << EOD
EOD
$ends << EOD
EOD
set terminal svg size 720,482 noenhanced font 'DejaVu Sans,16' dashlength 0.6 background '#ffffff' linewidth 1.3
mark = 0.55; spot = 0.62; sign = 1.05
set key spacing 0.87
set xtics offset 0,0.35
set xlabel offset 0,0.85
set output 'bytes_vs_step.svg'
plot 'bytes_vs_step.csv' skip 1 using ($1==0&&$2==0?$3:NaN):($4/1024) with lines lw 2.6 dt solid lc rgb '#0072B2' notitle, \
     'bytes_vs_step.csv' skip 1 using ($1==1&&$2==0?$3:NaN):($4/1024) with lines lw 2.6 dt (14,5) lc rgb '#D55E00' notitle, \
     $stripes using ($1==0?$2:NaN):($3/1024) with lines lw 3 lc rgb '#0072B2' notitle, \
     $stripes using ($1==1?$2:NaN):($3/1024) with lines lw 3 lc rgb '#D55E00' notitle, \
     $marks using ($1==0?$2:NaN):($3/1024) with points pt 7 ps spot lc rgb '#0072B2' notitle, \
     NaN with linespoints lw 2.6 dt solid lc rgb '#0072B2' pt 7 ps mark title 'full' noenhanced, \
     $marks using ($1==1?$2:NaN):($3/1024) with points pt 5 ps spot lc rgb '#D55E00' notitle, \
     NaN with linespoints lw 2.6 dt (14,5) lc rgb '#D55E00' pt 5 ps mark title 'h2o' noenhanced
unset output
